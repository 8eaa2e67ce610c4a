// The pre-tokenisation patterns of the Qwen family as a hand-written scanner: linear time, no recursion, whatever the
// input (a backtracking regex engine overflows its stack on long runs of one class).
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace heirloom::text {

enum class SplitPattern {
  qwen2,   // words are \p{L}+; combining marks count as punctuation
  qwen35,  // words are [\p{L}\p{M}]+
};

/// The pattern for a tokenizer.json regex, spelled exactly as published; nullopt for any other.
std::optional<SplitPattern> split_pattern_of_regex(std::string_view regex);

/// That regex.
std::string_view split_regex(SplitPattern pattern);

/// The pattern for a GGUF `tokenizer.ggml.pre` name; nullopt for any other.
std::optional<SplitPattern> split_pattern_of_gguf(std::string_view name);

/// End of the piece that starts at `begin` (< text.size()). `text` is valid UTF-8 and ends where the pattern's
/// end-of-text lookahead sees the end. Calling it from 0 to the end costs time linear in the text.
std::size_t next_split(SplitPattern pattern, std::string_view text, std::size_t begin);

}  // namespace heirloom::text
