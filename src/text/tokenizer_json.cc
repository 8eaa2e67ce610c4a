#include "text/tokenizer_json.h"

#include "base/check.h"
#include "base/json.h"

namespace heirloom::text {
namespace {

/// Written by hand where there are hundreds of thousands of entries: an ordered JSON object looks each new key up.
std::string quoted(const std::string& text) {
  return OrderedJson(text).dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

OrderedJson byte_level(bool prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", prefix_space}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

}  // namespace

std::string tokenizer_json(const Tokenizer& tokenizer) {
  const GgufVocabulary vocabulary = tokenizer.to_gguf();
  OrderedJson added = OrderedJson::array();
  std::string vocab;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& token = vocabulary.tokens[id];
    switch (vocabulary.token_types[id]) {
      case 1: vocab += (vocab.empty() ? "" : ",\n") + ("      " + quoted(token)) + ": " + std::to_string(id); break;
      case 3:
      case 4:
        added.push_back({{"id", id}, {"content", token}, {"single_word", false}, {"lstrip", false}, {"rstrip", false},
                         {"normalized", false}, {"special", vocabulary.token_types[id] == 3}});
        break;
      default: break;  // no token
    }
  }
  std::string merges;
  for (const std::string& merge : vocabulary.merges) {
    const std::size_t space = merge.find(' ');
    merges += (merges.empty() ? "" : ",\n") + ("      [" + quoted(merge.substr(0, space))) + ", " + quoted(merge.substr(space + 1)) + "]";
  }
  const auto pattern = split_pattern_of_gguf(vocabulary.pre);
  HEIRLOOM_CHECK(pattern.has_value());
  const OrderedJson split{{"type", "Split"}, {"pattern", {{"Regex", split_regex(*pattern)}}}, {"behavior", "Isolated"}, {"invert", false}};
  const OrderedJson pre{{"type", "Sequence"}, {"pretokenizers", OrderedJson::array({split, byte_level(false, false)})}};
  return "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": " + added.dump(1) +
         ",\n  \"normalizer\": {\"type\": \"NFC\"},\n  \"pre_tokenizer\": " + pre.dump() +
         ",\n  \"post_processor\": " + byte_level(false, false).dump() + ",\n  \"decoder\": " + byte_level(false, false).dump() +
         ",\n  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n    \"continuing_subword_prefix\": \"\","
         "\n    \"end_of_word_suffix\": \"\",\n    \"fuse_unk\": false,\n    \"byte_fallback\": false,\n    \"ignore_merges\": false,"
         "\n    \"vocab\": {\n" + vocab + "\n    },\n    \"merges\": [\n" + merges + "\n    ]\n  }\n}\n";
}

std::string tokenizer_config_json(const Tokenizer& tokenizer, int context_length) {
  OrderedJson json{{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}, {"model_max_length", context_length}};
  const auto name = [&](const char* key, std::optional<std::int32_t> id) {
    if (id) json[key] = std::string(tokenizer.token_bytes(*id));
  };
  name("bos_token", tokenizer.bos_id());
  name("eos_token", tokenizer.eos_id());
  name("pad_token", tokenizer.pad_id());
  for (const auto& [key, text] : {std::pair("image_token", "<|image_pad|>"), std::pair("video_token", "<|video_pad|>"),
                                  std::pair("vision_start_token", "<|vision_start|>"), std::pair("vision_end_token", "<|vision_end|>")}) {
    name(key, tokenizer.token_to_id(text));
  }
  return json.dump(2) + "\n";
}

}  // namespace heirloom::text
