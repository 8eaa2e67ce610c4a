#include "text/detokenizer.h"

#include "text/utf8.h"

namespace heirloom::text {
namespace {

/// The first two bytes of an encoded surrogate (ED A0..BF) are broken already, but the reference's incremental decoder
/// waits for the third byte before it says so.
bool starts_surrogate(std::string_view rest) {
  return rest.size() == 2 && rest[0] == '\xED' && static_cast<unsigned char>(rest[1]) >= 0xA0 &&
         static_cast<unsigned char>(rest[1]) <= 0xBF;
}

}  // namespace

std::string Detokenizer::push(std::int32_t id) {
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  pending_ += tokenizer_->token_bytes(id);
  std::string out;
  std::size_t at = 0;
  while (at < pending_.size()) {
    const Utf8Char c = decode_utf8(pending_, at);
    if (c.truncated || starts_surrogate(std::string_view(pending_).substr(at))) break;
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
  std::string out = replace_invalid_utf8(pending_);
  pending_.clear();
  return out;
}

}  // namespace heirloom::text
