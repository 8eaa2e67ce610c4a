// How the next token is chosen. Defaults mean "greedy unless the model's generation_config says otherwise".
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace heirloom {

struct SamplingParams {
  float temperature = 0.0f;         // 0 = greedy (argmax, lowest id of equals)
  int top_k = 0;                    // 0 = off
  float top_p = 1.0f;               // 1 = off
  float min_p = 0.0f;               // 0 = off
  float presence_penalty = 0.0f;    // subtracted once from every token already generated
  float frequency_penalty = 0.0f;   // subtracted per occurrence
  float repetition_penalty = 1.0f;  // divides positive, multiplies negative logits of tokens in prompt and answer
  std::uint64_t seed = 0;           // same seed, same request: same answer
  std::vector<std::pair<std::int32_t, float>> logit_bias;  // added to logits; token id, bias
};

}  // namespace heirloom
