// Every seed and every input that a fuzzer once found, through the same exercise as in the fuzzers.
#include <gtest/gtest.h>

#include "fuzz/exercise_formats.h"

namespace heirloom {
namespace {

int exercise_folder(const char* name, void (*exercise)(const std::filesystem::path&)) {
  const auto folder = std::filesystem::path(HEIRLOOM_SOURCE_DIR) / "tests" / "fuzz" / "corpus" / name;
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    SCOPED_TRACE(entry.path().string());
    EXPECT_NO_THROW(exercise(entry.path()));
    ++count;
  }
  return count;
}

TEST(fuzz_corpus, gguf_files_are_read_or_refused) {
  EXPECT_GE(exercise_folder("gguf", test::exercise_gguf), 14);
}

TEST(fuzz_corpus, safetensors_files_are_read_or_refused) {
  EXPECT_GE(exercise_folder("safetensors", test::exercise_safetensors), 13);
}

TEST(fuzz_corpus, the_valid_seeds_are_valid) {
  const auto corpus = std::filesystem::path(HEIRLOOM_SOURCE_DIR) / "tests" / "fuzz" / "corpus";
  for (const char* name : {"empty", "version2", "scalars", "arrays", "every_type", "aligned64"}) {
    EXPECT_NO_THROW(GgufFile(corpus / "gguf" / name)) << name;
  }
  for (const char* name : {"empty", "two", "metadata", "types", "unknown_field"}) {
    EXPECT_NO_THROW(SafetensorsFile(corpus / "safetensors" / name)) << name;
  }
}

}  // namespace
}  // namespace heirloom
