#!/bin/sh
# Downloads xgrammar's source archive from PyPI (pinned by version and hash) and unpacks it where the build looks for it. Prints
# the folder. Does nothing when it is there already.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
version=$(sed -n 's/^xgrammar==\([^ ]*\).*/\1/p' "$root/third_party/xgrammar/requirements.txt")
hash=$(sed -n 's/.*--hash=sha256:\([0-9a-f]*\).*/\1/p' "$root/third_party/xgrammar/requirements.txt")
deps=${HEIRLOOM_DEPS_DIR:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/heirloom}
target="$deps/xgrammar-$version"
if [ ! -f "$target/CMakeLists.txt" ]; then
  mkdir -p "$deps"
  work=$(mktemp -d "$deps/fetch.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  # pip prepares the package's metadata after it has downloaded the archive; what is needed here is only the archive.
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary xgrammar --dest "$work" "xgrammar==$version" >&2
  archive="$work/xgrammar-$version.tar.gz"
  echo "$hash  $archive" | sha256sum --check --quiet >&2
  tar -xzf "$archive" -C "$work"
  # A rename is atomic: builds that fetch at the same time do not see half a folder.
  mv "$work/xgrammar-$version" "$target" 2>/dev/null || [ -f "$target/CMakeLists.txt" ]
fi
echo "$target"
