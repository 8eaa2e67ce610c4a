#include "server/logprobs.h"

#include <algorithm>
#include <cmath>

namespace heirloom::server {
namespace {

// JSON has no infinity; this is what OpenAI's API sends for "never".
constexpr float kLowest = -9999.0f;

float finite(float logprob) { return std::isfinite(logprob) ? logprob : kLowest; }

Json token_object(const Engine& engine, const TokenLogprob& token) {
  const std::string text = engine.token_text(token.id);
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<int>(static_cast<unsigned char>(c)));
  return {{"token", text}, {"logprob", finite(token.logprob)}, {"bytes", std::move(bytes)}};
}

bool is_end(const std::vector<std::int32_t>& ends, std::int32_t id) { return std::find(ends.begin(), ends.end(), id) != ends.end(); }

std::int64_t characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

}  // namespace

Json chat_logprobs(const Engine& engine, const std::vector<TokenEvent>& tokens) {
  const auto ends = engine.end_token_ids();
  Json content = Json::array();
  for (const TokenEvent& token : tokens) {
    if (!token.chosen || is_end(ends, token.id)) continue;
    Json entry = token_object(engine, *token.chosen);
    entry["top_logprobs"] = Json::array();
    for (const TokenLogprob& one : token.top) entry["top_logprobs"].push_back(token_object(engine, one));
    content.push_back(std::move(entry));
  }
  return content;
}

Json text_logprobs(const Engine& engine, const std::vector<TokenEvent>& tokens, std::int64_t& offset) {
  const auto ends = engine.end_token_ids();
  Json result{{"tokens", Json::array()}, {"token_logprobs", Json::array()}, {"top_logprobs", Json::array()}, {"text_offset", Json::array()}};
  for (const TokenEvent& token : tokens) {
    if (!token.chosen || is_end(ends, token.id)) continue;
    const std::string text = engine.token_text(token.id);
    result["tokens"].push_back(text);
    result["token_logprobs"].push_back(finite(token.chosen->logprob));
    Json top = Json::object();
    for (const TokenLogprob& one : token.top) top[engine.token_text(one.id)] = finite(one.logprob);
    result["top_logprobs"].push_back(std::move(top));
    result["text_offset"].push_back(offset);
    offset += characters(text);
  }
  return result;
}

}  // namespace heirloom::server
