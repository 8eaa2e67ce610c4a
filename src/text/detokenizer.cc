#include "text/detokenizer.h"

#include "text/utf8.h"

namespace heirloom::text {

std::string Detokenizer::push(std::int32_t id) {
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  pending_ += tokenizer_->token_bytes(id);
  std::string out;
  std::size_t at = 0;
  while (at < pending_.size()) {
    const Utf8Char c = decode_utf8(pending_, at);
    if (c.truncated) break;
    if (c.valid) {
      out.append(pending_, at, c.size);
    } else {
      out += kReplacementUtf8;
    }
    at += c.size;
  }
  pending_.erase(0, at);
  return out;
}

std::string Detokenizer::flush() {
  const bool broken = !pending_.empty();
  pending_.clear();
  return broken ? std::string(kReplacementUtf8) : std::string();
}

}  // namespace heirloom::text
