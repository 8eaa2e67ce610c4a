// The incremental detokenizer of streamed answers: ids in, text out, never half a character.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace heirloom::text {

/// One streamed answer. The joined outputs of push() and flush() equal Tokenizer::decode of all ids.
class Detokenizer {
 public:
  /// `skip_special` leaves control tokens out, as in Tokenizer::decode. The tokenizer must outlive the detokenizer.
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special) : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  /// The text that is certain after this id: whole characters, and U+FFFD for bytes that can no longer become one.
  std::string push(std::int32_t id);

  /// Ends the answer: a character left unfinished becomes one U+FFFD, exactly once.
  std::string flush();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;  // the start of a character, at most 3 bytes
};

}  // namespace heirloom::text
