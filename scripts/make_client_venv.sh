#!/bin/sh
# Makes the Python environment of the client tests (tests/server/clients). Prints its folder. Without it those tests are skipped.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
venv=${HEIRLOOM_DEPS_DIR:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/heirloom}/clients
[ -x "$venv/bin/python" ] || python3 -m venv "$venv" >&2
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$root/tests/server/clients/requirements.txt" >&2
echo "$venv"
