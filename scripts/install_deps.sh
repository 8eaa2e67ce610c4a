#!/usr/bin/env bash
# Installs what building and testing need, from Debian's packages (12 or newer; Ubuntu 22.04 or newer has the same names).
# Nothing else is fetched except the grammar library's source (scripts/fetch_xgrammar.sh, from PyPI). Safe to run again.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  g++ cmake ninja-build pkg-config ccache          # build; ccache makes the second build short
  clang                                            # compiles the GPU kernels to PTX; no CUDA toolkit is used
  libfmt-dev nlohmann-json3-dev libcli11-dev       # formatting, JSON, options
  libpng-dev libjpeg62-turbo-dev libwebp-dev libgif-dev libstb-dev  # picture files
  libutf8proc-dev                                  # Unicode normalisation
  libzstd-dev libxxhash-dev                        # snapshots on disk
  libboost-dev                                     # HTTP (Beast, Asio)
  libedit-dev                                      # line editing in chat
  libgtest-dev libgmock-dev libbenchmark-dev       # tests and benchmarks
  python3 python3-pip python3-venv ca-certificates # test tools and scripts/fetch_xgrammar.sh
)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
# Ubuntu's name of the same library.
if ! apt-cache show libjpeg62-turbo-dev >/dev/null 2>&1 && apt-cache show libjpeg-turbo8-dev >/dev/null 2>&1; then
  missing=("${missing[@]/libjpeg62-turbo-dev/libjpeg-turbo8-dev}")
fi

if [ ${#missing[@]} -gt 0 ]; then
  sudo=""
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "install_deps.sh: ${missing[*]} are missing; run this as root" >&2; exit 1; }
    sudo=sudo
  fi
  echo "installing: ${missing[*]}" >&2
  $sudo apt-get update -q
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
fi

if [ -x scripts/fetch_xgrammar.sh ]; then
  scripts/fetch_xgrammar.sh
fi
