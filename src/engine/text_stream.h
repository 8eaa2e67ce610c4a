// The text side of one answer: ids in, text out in whole characters, stop strings found and never shown.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/stop_matcher.h"
#include "text/detokenizer.h"

namespace heirloom::engine {

class TextStream {
 public:
  /// `keep_special`: control tokens appear in the text.
  TextStream(const text::Tokenizer& tokenizer, bool keep_special, std::vector<std::string> stops)
      : detokenizer_(tokenizer, !keep_special), stops_(std::move(stops)) {}

  std::string push(std::int32_t id) { return stops_.push(detokenizer_.push(id)); }
  /// What is still held back at the end: an unfinished character (as U+FFFD), the beginning of a stop string.
  std::string flush() {
    std::string text = stops_.push(detokenizer_.flush());
    if (!stops_.matched()) text += stops_.flush();
    return text;
  }
  bool stopped() const { return stops_.matched(); }
  const std::string& stop_string() const { return stops_.match(); }

 private:
  text::Detokenizer detokenizer_;
  StopMatcher stops_;
};

}  // namespace heirloom::engine
