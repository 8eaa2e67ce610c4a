// Shared by the tests of the text layer: files, the tokenizers under test.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "support/golden.h"
#include "support/test_tools.h"
#include "text/tokenizer.h"

namespace heirloom::test {

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline nlohmann::ordered_json read_json(const std::filesystem::path& path) {
  return nlohmann::ordered_json::parse(read_text(path));
}

/// tokenizer.json of the published vocabulary (scripts/make_test_venv.sh); empty if it was not made.
inline std::filesystem::path published_tokenizer_file() {
  return test_tool("qwen3_5-tokenizer.json");
}

/// The published tokenizer, loaded once; call only if published_tokenizer_file() is not empty.
inline const text::Tokenizer& published_tokenizer() {
  static const text::Tokenizer tokenizer = text::Tokenizer::from_json(read_text(published_tokenizer_file()));
  return tokenizer;
}

inline std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

}  // namespace heirloom::test
