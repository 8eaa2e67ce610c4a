#include "engine/load_tokenizer.h"

#include "base/check.h"

namespace heirloom {
namespace {

text::Tokenizer from_gguf_keys(const GgufFile& file) {
  const GgufMetadata& keys = file.metadata();
  const std::string path = file.path().string();
  const std::string_view kind = keys.get_string("tokenizer.ggml.model");
  if (kind != "gpt2") {
    fail(ErrorKind::bad_file, "{}: tokenizer.ggml.model is \"{}\", expected gpt2 (byte-level BPE)", path, kind);
  }
  text::GgufVocabulary vocabulary;
  for (const std::string_view token : keys.get_strings("tokenizer.ggml.tokens")) vocabulary.tokens.emplace_back(token);
  for (const std::string_view merge : keys.get_strings("tokenizer.ggml.merges")) vocabulary.merges.emplace_back(merge);
  for (const std::int64_t type : keys.find_i64s("tokenizer.ggml.token_type").value_or(std::vector<std::int64_t>{})) {
    vocabulary.token_types.push_back(static_cast<std::int32_t>(type));
  }
  vocabulary.pre = std::string(keys.get_string("tokenizer.ggml.pre"));
  const auto id = [&](const char* key) -> std::optional<std::int32_t> {
    const auto value = keys.find_count(key);
    return value ? std::optional<std::int32_t>(*value) : std::nullopt;
  };
  vocabulary.bos_id = id("tokenizer.ggml.bos_token_id");
  vocabulary.eos_id = id("tokenizer.ggml.eos_token_id");
  vocabulary.pad_id = id("tokenizer.ggml.padding_token_id");
  try {
    return text::Tokenizer::from_gguf(vocabulary);
  } catch (const Error& error) {
    throw error.wrap(path);
  }
}

}  // namespace

text::Tokenizer load_tokenizer(const model::ModelFiles& files) {
  if (files.gguf) return from_gguf_keys(*files.gguf);
  if (files.tokenizer_json.empty()) {
    fail(ErrorKind::bad_file, "{}: no tokenizer.json in this folder", files.path.string());
  }
  try {
    return text::Tokenizer::from_json(files.tokenizer_json, files.tokenizer_config_json);
  } catch (const Error& error) {
    throw error.wrap(files.path.string());
  }
}

}  // namespace heirloom
