#include "text/tokenizer.h"

#include <algorithm>

#include "text/byte_alphabet.h"
#include "text/unicode_nfc.h"
#include "text/utf8.h"

namespace heirloom::text {

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, SpecialTokens specials) const {
  std::vector<std::int32_t> ids;
  if (is_valid_utf8(text)) {
    encode_valid(text, specials, {}, ids);
  } else {
    encode_valid(replace_invalid_utf8(text), specials, {}, ids);
  }
  return ids;
}

std::vector<std::int32_t> Tokenizer::encode_segments(std::span<const PromptSegment> segments) const {
  std::string text;
  std::vector<Untrusted> untrusted;
  for (const auto& segment : segments) {
    const std::size_t begin = text.size();
    if (is_valid_utf8(segment.text)) {
      text += segment.text;
    } else {
      text += replace_invalid_utf8(segment.text);
    }
    if (!segment.trusted && text.size() > begin) untrusted.push_back({begin, text.size()});
  }
  std::vector<std::int32_t> ids;
  encode_valid(text, SpecialTokens::parse, untrusted, ids);
  return ids;
}

void Tokenizer::encode_valid(std::string_view text, SpecialTokens specials, std::span<const Untrusted> untrusted,
                             std::vector<std::int32_t>& out) const {
  out.reserve(out.size() + text.size() / 4 + 8);
  if (specials == SpecialTokens::as_text) return encode_stretch(text, false, out);
  std::size_t begin = 0;  // of the stretch not yet encoded
  std::size_t range = 0;  // first untrusted range that ends after the current position
  for (std::size_t at = before_nfc_.next_candidate(text, 0); at < text.size();) {
    while (range < untrusted.size() && untrusted[range].end <= at) ++range;
    const std::size_t trusted_until = range < untrusted.size() ? untrusted[range].begin : text.size();
    const AddedToken* found = nullptr;
    before_nfc_.matches(text, at, [&](std::size_t token, std::size_t length) {
      const bool allowed = !added_[token].special || (specials == SpecialTokens::parse && at + length <= trusted_until);
      if (allowed) found = &added_[token];
    });
    if (found) {
      encode_stretch(text.substr(begin, at - begin), true, out);
      out.push_back(found->id);
      begin = at + found->content.size();
    }
    at = before_nfc_.next_candidate(text, found ? begin : at + 1);
  }
  encode_stretch(text.substr(begin), true, out);
}

void Tokenizer::encode_stretch(std::string_view stretch, bool added, std::vector<std::int32_t>& out) const {
  if (stretch.empty()) return;
  std::string normal;
  if (nfc_ && !is_surely_nfc(stretch)) {
    normal = to_nfc(stretch);
    stretch = normal;
  }
  if (!added || late_.empty()) return encode_plain(stretch, out);
  std::size_t begin = 0;
  for (std::size_t at = after_nfc_.next_candidate(stretch, 0); at < stretch.size();) {
    const AddedToken* found = nullptr;
    after_nfc_.matches(stretch, at, [&](std::size_t token, std::size_t) { found = &late_[token]; });
    if (found) {
      encode_plain(stretch.substr(begin, at - begin), out);
      out.push_back(found->id);
      begin = at + found->content.size();
    }
    at = after_nfc_.next_candidate(stretch, found ? begin : at + 1);
  }
  encode_plain(stretch.substr(begin), out);
}

void Tokenizer::encode_plain(std::string_view text, std::vector<std::int32_t>& out) const {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = next_split(pattern_, text, begin);
    bpe_.encode(text.substr(begin, end - begin), out);
    begin = end;
  }
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const std::int32_t id : ids) {
    if (!skip_special || !is_special(id)) bytes += token_bytes(id);
  }
  return is_valid_utf8(bytes) ? bytes : replace_invalid_utf8(bytes);
}

std::string Tokenizer::piece(std::int32_t id) const { return decode({&id, 1}, false); }

std::string_view Tokenizer::token_bytes(std::int32_t id) const noexcept {
  return kind(id) == Kind::none ? std::string_view{} : bpe_.bytes(id);
}

std::optional<std::int32_t> Tokenizer::token_to_id(std::string_view text) const {
  for (const auto* tokens : {&added_, &late_}) {
    for (const auto& token : *tokens) {
      if (token.content == text) return token.id;
    }
  }
  const std::int32_t id = bpe_.find(text);
  return id >= 0 ? std::optional(id) : std::nullopt;
}

GgufVocabulary Tokenizer::to_gguf() const {
  GgufVocabulary out;
  for (std::int32_t id = 0; id < vocab_size(); ++id) {
    switch (kind(id)) {
      case Kind::none:
        out.tokens.push_back("[PAD" + std::to_string(id) + "]");
        out.token_types.push_back(5);
        break;
      case Kind::vocabulary:
        out.tokens.push_back(bytes_to_alphabet(bpe_.bytes(id)));
        out.token_types.push_back(1);
        break;
      case Kind::added:
      case Kind::special:
        out.tokens.emplace_back(bpe_.bytes(id));
        out.token_types.push_back(kind(id) == Kind::special ? 3 : 4);
        break;
    }
  }
  for (const auto& [left, right] : bpe_.merges()) out.merges.push_back(bytes_to_alphabet(left) + " " + bytes_to_alphabet(right));
  out.pre = pattern_ == SplitPattern::qwen2 ? "qwen2" : "qwen35";
  out.bos_id = bos_id_;
  out.eos_id = eos_id_;
  out.pad_id = pad_id_;
  return out;
}

}  // namespace heirloom::text
