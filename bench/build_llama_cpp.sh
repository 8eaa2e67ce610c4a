#!/usr/bin/env bash
# Builds llama.cpp (source of the newest llama-cpp-python sdist on PyPI) for comparisons: build_llama_cpp.sh WORKDIR
#   WORKDIR/bin/llama-bench-native   everything this CPU has (AMX too)
#   WORKDIR/bin/llama-bench-avx512   AVX-512 + VNNI + BF16 without AMX
#   WORKDIR/bin/llama-bench-sse42    no AVX
#   WORKDIR/bin/{llama-server,llama-completion,llama-quantize}  native
# Only ggml-cpu is compiled with ISA flags, so the variants are that library linked into the same tool.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=${1:?work directory}; mkdir -p "$work/bin"; work=$(cd "$work" && pwd)
if ! compgen -G "$work/llama_cpp_python-*/vendor/llama.cpp/CMakeLists.txt" >/dev/null; then
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" download -q --no-binary :all: --no-deps llama-cpp-python -d "$work/sdist"
  tar xf "$work"/sdist/*.tar.gz -C "$work"
fi
source_dir=$(echo "$work"/llama_cpp_python-*/vendor/llama.cpp)
# GCC 12 drops the stores of the AMX tile configuration: SIGILL without this line.
grep -q 'keep the stores' "$source_dir/ggml/src/ggml-cpu/amx/mmq.cpp" ||
  patch -s "$source_dir/ggml/src/ggml-cpu/amx/mmq.cpp" < "$here/llama_cpp_amx_gcc12.diff"
common="-G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_OPENMP=ON -DBUILD_SHARED_LIBS=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF
        -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF"
native=$work/build-native
cmake -S "$source_dir" -B "$native" $common -DGGML_NATIVE=ON >/dev/null
ninja -C "$native" llama-bench llama-server llama-completion llama-quantize | tail -1
cmake -S "$source_dir" -B "$work/build-avx512" $common -DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_BMI2=ON \
  -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON >/dev/null
cmake -S "$source_dir" -B "$work/build-sse42" $common -DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=OFF -DGGML_AVX2=OFF -DGGML_BMI2=OFF \
  -DGGML_FMA=OFF -DGGML_F16C=OFF >/dev/null
cp "$native"/bin/llama-{server,completion,quantize} "$work/bin/"
cp "$native/bin/llama-bench" "$work/bin/llama-bench-native"
for variant in avx512 sse42; do
  ninja -C "$work/build-$variant" ggml-cpu | tail -1
  (cd "$native" && bash -c "$(ninja -t commands llama-bench | tail -1 |
    sed "s#ggml/src/libggml-cpu.a#$work/build-$variant/ggml/src/libggml-cpu.a#g; s#-o bin/llama-bench#-o $work/bin/llama-bench-$variant#")")
done
