#include "engine/text_side.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/sampler.h"

namespace heirloom::engine {
namespace {

text::Tokenizer tokenizer_from_gguf(const GgufMetadata& keys) {
  text::GgufVocabulary vocabulary;
  for (const std::string_view token : keys.get_strings("tokenizer.ggml.tokens")) vocabulary.tokens.emplace_back(token);
  if (const auto types = keys.find_i64s("tokenizer.ggml.token_type")) {
    for (const std::int64_t type : *types) {
      vocabulary.token_types.push_back(static_cast<std::int32_t>(std::clamp<std::int64_t>(type, -1, 1000)));
    }
  }
  for (const std::string_view merge : keys.get_strings("tokenizer.ggml.merges")) vocabulary.merges.emplace_back(merge);
  vocabulary.pre = keys.find_string("tokenizer.ggml.pre").value_or("");
  const auto id = [&](std::string_view key) -> std::optional<std::int32_t> {
    const auto value = keys.find_u64(key);
    if (!value || *value >= vocabulary.tokens.size()) return std::nullopt;
    return static_cast<std::int32_t>(*value);
  };
  vocabulary.bos_id = id("tokenizer.ggml.bos_token_id");
  vocabulary.eos_id = id("tokenizer.ggml.eos_token_id");
  vocabulary.pad_id = id("tokenizer.ggml.padding_token_id");
  return text::Tokenizer::from_gguf(vocabulary);
}

template <typename T>
void read_number(const OrderedJson& json, const char* key, T& value) {
  if (json.contains(key) && json[key].is_number()) value = json[key].get<T>();
}

void read_generation_config(const std::string& text, const std::string& source, GenerationDefaults& defaults,
                            std::set<std::int32_t>& end_tokens) {
  const OrderedJson json = parse_json(text, source);
  if (!json.is_object()) fail(ErrorKind::bad_file, "{}: the generation config is not a JSON object", source);
  SamplingParams& sampling = defaults.sampling;
  if (json.contains("do_sample") && json["do_sample"].is_boolean() && json["do_sample"].get<bool>()) {
    sampling.temperature = 1.0f;  // the defaults of transformers' GenerationConfig
    sampling.top_k = 50;
    read_number(json, "temperature", sampling.temperature);
    read_number(json, "top_k", sampling.top_k);
    read_number(json, "top_p", sampling.top_p);
    read_number(json, "min_p", sampling.min_p);
  }
  read_number(json, "repetition_penalty", sampling.repetition_penalty);
  read_number(json, "max_new_tokens", defaults.max_new_tokens);
  if (json.contains("eos_token_id")) {
    const OrderedJson& eos = json["eos_token_id"];
    for (const OrderedJson& id : eos.is_array() ? eos : OrderedJson::array({eos})) {
      if (id.is_number_integer()) end_tokens.insert(id.get<std::int32_t>());
    }
  }
}

void read_gguf_sampling(const GgufMetadata& keys, SamplingParams& sampling) {
  sampling.temperature = keys.find_f32("general.sampling.temp").value_or(sampling.temperature);
  sampling.top_k = keys.find_count("general.sampling.top_k").value_or(sampling.top_k);
  sampling.top_p = keys.find_f32("general.sampling.top_p").value_or(sampling.top_p);
  sampling.min_p = keys.find_f32("general.sampling.min_p").value_or(sampling.min_p);
  sampling.repetition_penalty = keys.find_f32("general.sampling.penalty_repeat").value_or(sampling.repetition_penalty);
}

}  // namespace

text::Tokenizer open_tokenizer(const model::ModelFiles& files) {
  try {
    if (files.gguf) return tokenizer_from_gguf(files.gguf->metadata());
    if (files.tokenizer_json.empty()) {
      fail(ErrorKind::bad_file, "no tokenizer.json in this folder; download it with the rest of the model");
    }
    return text::Tokenizer::from_json(files.tokenizer_json, files.tokenizer_config_json);
  } catch (const Error& error) {
    throw error.wrap(files.path.string());
  }
}

GenerationDefaults generation_defaults(const model::ModelFiles& files, const text::Tokenizer& tokenizer) {
  GenerationDefaults defaults;
  std::set<std::int32_t> end_tokens;
  if (!files.generation_config_json.empty()) {
    read_generation_config(files.generation_config_json, files.path.string(), defaults, end_tokens);
  } else if (files.gguf) {
    read_gguf_sampling(files.gguf->metadata(), defaults.sampling);
  }
  if (end_tokens.empty()) {
    if (const auto eos = tokenizer.eos_id()) end_tokens.insert(*eos);
    // Chat answers end with <|im_end|>, base models with <|endoftext|>, whatever the file calls its end token.
    for (const std::string_view text : {"<|im_end|>", "<|endoftext|>"}) {
      const auto id = tokenizer.token_to_id(text);
      if (id && tokenizer.is_special(*id)) end_tokens.insert(*id);
    }
  }
  defaults.end_tokens.assign(end_tokens.begin(), end_tokens.end());
  defaults.max_new_tokens = std::max(defaults.max_new_tokens, 0);
  try {
    check_sampling(defaults.sampling, files.config.text.vocab_size);
  } catch (const Error& error) {
    log::warning("{}: default sampling ignored: {}", files.path.string(), error.what());
    defaults.sampling = {};
  }
  return defaults;
}

}  // namespace heirloom::engine
