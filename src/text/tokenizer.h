// The tokenizer: text to ids and back, equal to the Hugging Face tokenizer of the same files. Byte-level BPE with the
// Qwen family's splitting rules; added tokens are split out first, then NFC, then pre-tokens, then BPE.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe_model.h"
#include "text/pre_split.h"
#include "text/prompt_segment.h"

namespace heirloom::text {

/// What becomes of added tokens (<|im_end|>, <think>) that occur in a text.
enum class SpecialTokens {
  parse,         // every added token becomes its id: text that the program or the template wrote
  plain_only,    // tokens such as <think> become ids, control tokens (special = true) stay text: untrusted text
  as_text,       // none becomes an id
};

/// The tokenizer keys of a GGUF file, as plain values (`tokenizer.ggml.*`).
struct GgufVocabulary {
  std::vector<std::string> tokens;
  std::vector<std::int32_t> token_types;  // 1 normal, 3 control, 4 user defined, 5 unused, 6 byte; may be empty: all normal
  std::vector<std::string> merges;        // "left right"
  std::string pre;                        // "qwen2" or "qwen35"
  std::optional<std::int32_t> bos_id, eos_id, pad_id;
};

class Tokenizer {
 public:
  /// From the texts of tokenizer.json and tokenizer_config.json (may be empty). Throws Error{bad_file} for a damaged file
  /// and for anything this tokenizer would not reproduce exactly: other models, normalizers, patterns, token flags.
  static Tokenizer from_json(std::string_view tokenizer_json, std::string_view tokenizer_config_json = {});

  /// From GGUF metadata. Throws Error{bad_file} for inconsistent counts or an unknown `pre`. NFC is applied, as the
  /// Hugging Face tokenizers of these families do.
  static Tokenizer from_gguf(const GgufVocabulary& vocabulary);

  /// Ids of a text; broken UTF-8 counts as U+FFFD (one for each maximal broken part). Linear in the text up to a log
  /// factor, flat stack. Thread-safe.
  std::vector<std::int32_t> encode(std::string_view text, SpecialTokens specials) const;

  /// Ids of a rendered prompt. The segments are encoded as one text, so harmless untrusted text gives exactly what
  /// encode(joined text, parse) gives; but a control token (special = true) counts only where trusted text alone spells it.
  std::vector<std::int32_t> encode_segments(std::span<const PromptSegment> segments) const;

  /// Text of ids; bytes that are no UTF-8 become U+FFFD, unknown ids nothing. `skip_special` leaves control tokens out.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special) const;

  /// The text of one id by itself, broken bytes shown as U+FFFD.
  std::string piece(std::int32_t id) const;

  /// Raw bytes of an id; empty for an id without token. Added tokens give their text.
  std::string_view token_bytes(std::int32_t id) const noexcept;

  /// Id of an added token's text, or of a vocabulary entry whose raw bytes are `text`.
  std::optional<std::int32_t> token_to_id(std::string_view text) const;

  /// Largest id + 1. The model's embedding may have more rows.
  std::int32_t vocab_size() const noexcept { return bpe_.id_limit(); }
  bool is_special(std::int32_t id) const noexcept { return kind(id) == Kind::special; }
  bool is_added(std::int32_t id) const noexcept { return kind(id) == Kind::special || kind(id) == Kind::added; }
  std::span<const AddedToken> added_tokens() const noexcept { return added_; }
  std::optional<std::int32_t> bos_id() const noexcept { return bos_id_; }
  std::optional<std::int32_t> eos_id() const noexcept { return eos_id_; }
  std::optional<std::int32_t> pad_id() const noexcept { return pad_id_; }

  /// The same tokenizer as GGUF metadata; ids without a token are filled as unused "[PADn]", as converters do.
  /// from_gguf(to_gguf()) encodes alike.
  GgufVocabulary to_gguf() const;

 private:
  enum class Kind : std::uint8_t { none, vocabulary, added, special };
  struct Untrusted {  // byte range of the joined prompt
    std::size_t begin, end;
  };
  friend class TokenizerBuilder;

  Kind kind(std::int32_t id) const noexcept {
    return id >= 0 && static_cast<std::size_t>(id) < kinds_.size() ? kinds_[static_cast<std::size_t>(id)] : Kind::none;
  }
  void encode_valid(std::string_view text, SpecialTokens specials, std::span<const Untrusted> untrusted,
                    std::vector<std::int32_t>& out) const;
  void encode_stretch(std::string_view stretch, bool added, std::vector<std::int32_t>& out) const;
  void encode_plain(std::string_view text, std::vector<std::int32_t>& out) const;

  BpeModel bpe_;
  std::vector<AddedToken> added_;
  AddedTokenTrie before_nfc_;        // indexes into added_
  std::vector<AddedToken> late_;     // those with normalized = true
  AddedTokenTrie after_nfc_;         // indexes into late_
  std::vector<Kind> kinds_;          // by id
  SplitPattern pattern_ = SplitPattern::qwen35;
  bool nfc_ = true;
  std::optional<std::int32_t> bos_id_, eos_id_, pad_id_;
};

}  // namespace heirloom::text
