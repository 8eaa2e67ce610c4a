// libFuzzer target of the GGUF reader. Seeds: tests/fuzz/corpus/gguf.
#include "exercise_formats.h"
#include "memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const heirloom::test::MemoryFile file(data, size);
  heirloom::test::exercise_gguf(file.path());
  return 0;
}
