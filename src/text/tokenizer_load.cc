// Builds a Tokenizer from tokenizer.json (+ tokenizer_config.json) or from GGUF metadata. Whatever the tokenizer would
// not reproduce exactly is refused here, by name.
#include "base/check.h"
#include "base/json.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer.h"

namespace heirloom::text {

using nlohmann::json;

class TokenizerBuilder {
 public:
  Tokenizer tokenizer;

  void add_vocabulary(std::int32_t id, std::string_view spelling) {
    const auto bytes = alphabet_to_bytes(spelling);
    // An entry outside the byte alphabet can never be produced by merging bytes; published files have such entries only
    // for added tokens, whose text is then taken as it is.
    tokenizer.bpe_.add_token(id, bytes ? std::string_view(*bytes) : spelling);
    set_kind(id, Tokenizer::Kind::vocabulary);
  }

  void add_merge(std::string_view left, std::string_view right) {
    const auto a = alphabet_to_bytes(left);
    const auto b = alphabet_to_bytes(right);
    if (!a || !b) fail(ErrorKind::bad_file, "merge \"{} {}\" is not in the byte-level alphabet", left, right);
    tokenizer.bpe_.add_merge(*a, *b);
  }

  void add_added(AddedToken token) {
    if (token.id >= 0 && static_cast<std::size_t>(token.id) < tokenizer.kinds_.size() &&
        tokenizer.kinds_[static_cast<std::size_t>(token.id)] != Tokenizer::Kind::none) {
      if (tokenizer.bpe_.bytes(token.id) != token.content) {
        fail(ErrorKind::bad_file, "added token {} is \"{}\", but the vocabulary has another text for it", token.id, token.content);
      }
    } else {
      tokenizer.bpe_.add_token(token.id, token.content, false);
    }
    set_kind(token.id, token.special ? Tokenizer::Kind::special : Tokenizer::Kind::added);
    // Control tokens are always looked for in the raw text: trust is known there and not after normalisation.
    (token.normalized && !token.special ? tokenizer.late_ : tokenizer.added_).push_back(std::move(token));
  }

  void set_pattern(SplitPattern pattern) { tokenizer.pattern_ = pattern; }
  void set_nfc(bool nfc) { tokenizer.nfc_ = nfc; }
  void set_ids(std::optional<std::int32_t> bos, std::optional<std::int32_t> eos, std::optional<std::int32_t> pad) {
    for (const auto& id : {bos, eos, pad}) {
      if (id && (*id < 0 || *id >= tokenizer.vocab_size())) {
        fail(ErrorKind::bad_file, "special token id {} is outside the vocabulary of {}", *id, tokenizer.vocab_size());
      }
    }
    tokenizer.bos_id_ = bos;
    tokenizer.eos_id_ = eos;
    tokenizer.pad_id_ = pad;
  }
  bool has_id(std::int32_t id) const { return tokenizer.bpe_.contains(id); }

  Tokenizer finish() {
    tokenizer.bpe_.finish();
    for (const AddedToken& token : tokenizer.added_) {
      // Else any text could make the control token, whatever is done to keep it out.
      if (token.special && tokenizer.bpe_.encoding_can_make(token.id)) {
        fail(ErrorKind::bad_file, "control token {} (\"{}\") is also a byte or the result of a merge", token.id, token.content);
      }
    }
    tokenizer.before_nfc_ = AddedTokenTrie(tokenizer.added_);
    tokenizer.after_nfc_ = AddedTokenTrie(tokenizer.late_);
    return std::move(tokenizer);
  }

 private:
  void set_kind(std::int32_t id, Tokenizer::Kind kind) {
    if (static_cast<std::size_t>(id) >= tokenizer.kinds_.size()) tokenizer.kinds_.resize(static_cast<std::size_t>(id) + 1);
    tokenizer.kinds_[static_cast<std::size_t>(id)] = kind;
  }
};

namespace {

json parse(std::string_view text, std::string_view file) {
  json value = parse_sorted_json(text, file);  // the vocabulary is one object
  if (!value.is_object()) fail(ErrorKind::bad_file, "{} is not a JSON object", file);
  return value;
}

const json& member(const json& object, const char* key) {
  static const json null;
  const auto it = object.find(key);
  return it == object.end() ? null : *it;
}

bool flag(const json& object, const char* key) {
  const json& value = member(object, key);
  return value.is_boolean() && value.get<bool>();
}

std::string text_of(const json& value) { return value.is_string() ? value.get<std::string>() : std::string(); }

std::int32_t id_of(const json& value, std::string_view what) {
  if (!value.is_number_integer()) fail(ErrorKind::bad_file, "the id of {} is not an integer", what);
  const auto id = value.get<std::int64_t>();
  if (id < 0 || id > BpeModel::kMaxId) fail(ErrorKind::bad_file, "the id of {} is {}, expected 0..{}", what, id, BpeModel::kMaxId);
  return static_cast<std::int32_t>(id);
}

bool reads_nfc(const json& normalizer) {
  if (normalizer.is_null()) return false;
  const std::string type = text_of(member(normalizer, "type"));
  if (type == "NFC") return true;
  if (type == "Sequence" && member(normalizer, "normalizers").is_array()) {
    bool nfc = false;
    for (const json& part : member(normalizer, "normalizers")) nfc |= reads_nfc(part);
    return nfc;
  }
  fail(ErrorKind::bad_file, "normalizer \"{}\" is not supported, expected NFC or none", type);
}

SplitPattern read_split(const json& pre) {
  const json& steps = member(pre, "pretokenizers");
  if (text_of(member(pre, "type")) != "Sequence" || !steps.is_array() || steps.size() != 2 || !steps[0].is_object() ||
      !steps[1].is_object() || text_of(member(steps[0], "type")) != "Split" ||
      text_of(member(steps[1], "type")) != "ByteLevel") {
    fail(ErrorKind::bad_file, "the pre-tokenizer is not the Qwen family's: expected a Sequence of Split and ByteLevel");
  }
  const json& pattern = member(steps[0], "pattern");
  const std::string regex = pattern.is_object() ? text_of(member(pattern, "Regex")) : std::string();
  const auto known = split_pattern_of_regex(regex);
  if (!known) {
    fail(ErrorKind::bad_file, "the pre-tokenizer's pattern \"{}\" is not one of the Qwen family's published ones", regex);
  }
  if (text_of(member(steps[0], "behavior")) != "Isolated" || flag(steps[0], "invert")) {
    fail(ErrorKind::bad_file, "the pre-tokenizer's Split must be Isolated and not inverted");
  }
  if (flag(steps[1], "add_prefix_space") || flag(steps[1], "use_regex")) {
    fail(ErrorKind::bad_file, "the pre-tokenizer's ByteLevel must have add_prefix_space and use_regex off");
  }
  return *known;
}

AddedToken read_added(const json& value, std::int32_t id) {
  AddedToken token{id, text_of(member(value, "content")), flag(value, "special"), flag(value, "normalized")};
  for (const char* key : {"single_word", "lstrip", "rstrip"}) {
    if (flag(value, key)) fail(ErrorKind::bad_file, "added token \"{}\" sets {}, which is not supported", token.content, key);
  }
  return token;
}

void read_merges(const json& merges, TokenizerBuilder& builder) {
  if (!merges.is_array()) fail(ErrorKind::bad_file, "the BPE model has no list of merges");
  for (const json& merge : merges) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      builder.add_merge(merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>());
    } else if (merge.is_string()) {
      const std::string_view pair = merge.get_ref<const std::string&>();
      const auto space = pair.find(' ');
      if (space == std::string_view::npos) fail(ErrorKind::bad_file, "merge \"{}\" has no space between its parts", pair);
      builder.add_merge(pair.substr(0, space), pair.substr(space + 1));
    } else {
      fail(ErrorKind::bad_file, "a merge is neither \"left right\" nor [left, right]");
    }
  }
}

std::optional<std::int32_t> configured_id(const json& config, const char* key, const Tokenizer& tokenizer) {
  const json& value = member(config, key);  // a string, or an added token object
  const std::string text = value.is_object() ? text_of(member(value, "content")) : text_of(value);
  return text.empty() ? std::nullopt : tokenizer.token_to_id(text);
}

void read_model(const json& model, TokenizerBuilder& builder) {
  if (!model.is_object() || text_of(member(model, "type")) != "BPE") {
    fail(ErrorKind::bad_file, "tokenizer model \"{}\" is not supported, expected BPE",
         model.is_object() ? text_of(member(model, "type")) : "");
  }
  for (const char* key : {"fuse_unk", "byte_fallback", "ignore_merges"}) {
    if (flag(model, key)) fail(ErrorKind::bad_file, "the BPE model sets {}, which is not supported", key);
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!text_of(member(model, key)).empty()) fail(ErrorKind::bad_file, "the BPE model sets {}, which is not supported", key);
  }
  if (member(model, "dropout").is_number() && member(model, "dropout").get<double>() != 0) {
    fail(ErrorKind::bad_file, "the BPE model uses dropout, which is not supported");
  }
  const json& vocab = member(model, "vocab");
  if (!vocab.is_object()) fail(ErrorKind::bad_file, "the BPE model has no vocabulary");
  for (const auto& [spelling, id] : vocab.items()) builder.add_vocabulary(id_of(id, spelling), spelling);
  read_merges(member(model, "merges"), builder);
}

}  // namespace

Tokenizer Tokenizer::from_json(std::string_view tokenizer_json, std::string_view tokenizer_config_json) {
  const json root = parse(tokenizer_json, "tokenizer.json");
  const json config = tokenizer_config_json.empty() ? json::object() : parse(tokenizer_config_json, "tokenizer_config.json");
  TokenizerBuilder builder;
  read_model(member(root, "model"), builder);
  builder.set_nfc(reads_nfc(member(root, "normalizer")));
  builder.set_pattern(read_split(member(root, "pre_tokenizer")));
  if (const json& added = member(root, "added_tokens"); added.is_array()) {
    for (const json& token : added) {
      if (!token.is_object()) fail(ErrorKind::bad_file, "an entry of added_tokens is not an object");
      builder.add_added(read_added(token, id_of(member(token, "id"), text_of(member(token, "content")))));
    }
  }
  if (const json& added = member(config, "added_tokens_decoder"); added.is_object()) {
    for (const auto& [key, token] : added.items()) {
      if (!token.is_object() || key.empty() || key.size() > 8 || key.find_first_not_of("0123456789") != std::string::npos) {
        fail(ErrorKind::bad_file, "tokenizer_config.json: added_tokens_decoder has a damaged entry \"{}\"", key);
      }
      const auto id = static_cast<std::int32_t>(std::stol(key));
      if (!builder.has_id(id)) builder.add_added(read_added(token, id));
    }
  }
  builder.set_ids(configured_id(config, "bos_token", builder.tokenizer), configured_id(config, "eos_token", builder.tokenizer),
                  configured_id(config, "pad_token", builder.tokenizer));
  return builder.finish();
}

Tokenizer Tokenizer::from_gguf(const GgufVocabulary& vocabulary) {
  const auto pattern = split_pattern_of_gguf(vocabulary.pre);
  if (!pattern) {
    fail(ErrorKind::bad_file, "tokenizer.ggml.pre is \"{}\", expected \"qwen2\" or \"qwen35\"", vocabulary.pre);
  }
  const std::size_t count = vocabulary.tokens.size();
  if (!vocabulary.token_types.empty() && vocabulary.token_types.size() != count) {
    fail(ErrorKind::bad_file, "tokenizer.ggml.token_type has {} entries, tokenizer.ggml.tokens {}",
         vocabulary.token_types.size(), count);
  }
  if (count > static_cast<std::size_t>(BpeModel::kMaxId)) {
    fail(ErrorKind::bad_file, "tokenizer.ggml.tokens has {} entries, at most {} are supported", count, BpeModel::kMaxId);
  }
  TokenizerBuilder builder;
  builder.set_pattern(*pattern);
  std::vector<AddedToken> added;
  for (std::size_t i = 0; i < count; ++i) {
    const auto id = static_cast<std::int32_t>(i);
    const std::int32_t type = vocabulary.token_types.empty() ? 1 : vocabulary.token_types[i];
    switch (type) {
      case 1:
      case 2:
      case 6: builder.add_vocabulary(id, vocabulary.tokens[i]); break;
      case 3:
      case 4: added.push_back({id, vocabulary.tokens[i], type == 3, false}); break;
      case 5: break;  // padding rows of the embedding
      default: fail(ErrorKind::bad_file, "tokenizer.ggml.token_type[{}] is {}, expected 1..6", i, type);
    }
  }
  for (const std::string& merge : vocabulary.merges) {
    const auto space = merge.find(' ');
    if (space == std::string::npos) fail(ErrorKind::bad_file, "merge \"{}\" has no space between its parts", merge);
    builder.add_merge(std::string_view(merge).substr(0, space), std::string_view(merge).substr(space + 1));
  }
  for (AddedToken& token : added) builder.add_added(std::move(token));
  builder.set_ids(vocabulary.bos_id, vocabulary.eos_id, vocabulary.pad_id);
  return builder.finish();
}

}  // namespace heirloom::text
