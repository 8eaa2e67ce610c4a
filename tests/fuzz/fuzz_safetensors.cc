// libFuzzer target of the safetensors reader. Seeds: tests/fuzz/corpus/safetensors.
#include "exercise_formats.h"
#include "memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const heirloom::test::MemoryFile file(data, size);
  heirloom::test::exercise_safetensors(file.path());
  return 0;
}
