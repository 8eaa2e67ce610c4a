#!/bin/sh
# Makes what the tests compare with beyond Debian's packages: a Python environment with unmodified clients and file
# readers (tests/requirements.txt) and the published tokenizer. Prints its folder. Tests name what they skip without it.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
deps=${HEIRLOOM_DEPS_DIR:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/heirloom}
venv=$deps/test-venv
[ -x "$venv/bin/python" ] || python3 -m venv "$venv" >&2
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$root/tests/requirements.txt" >&2
tokenizer=$deps/qwen3_5-tokenizer.json
if [ ! -e "$tokenizer" ]; then
  "$venv/bin/python" "$root/tests/text/make_qwen_tokenizer.py" "$tokenizer.part"
  mv "$tokenizer.part" "$tokenizer"
fi
echo "$venv"
