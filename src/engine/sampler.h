// Chooses the next token from a row of logits. Owns the order of the filters, the random numbers and the log
// probabilities; knows nothing about batches: a request's choices depend on its own logits, history and seed only.
//
// Order (transformers' generation/utils.py: processors first, then warpers): logit bias, repetition penalty, frequency and
// presence penalty, constraint mask, temperature, top-k, top-p, min-p, draw. Log probabilities are of the model's own
// distribution: log-softmax of the logits as the model gave them, before bias, penalties, mask and temperature, so that
// they mean the same whatever the sampling settings (what OpenAI's API reports for temperature 1 without bias).
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "heirloom/engine.h"
#include "heirloom/sampling.h"

namespace heirloom::engine {

/// Throws Error{usage} naming the first parameter outside its range, or a biased token outside [0, vocab_size).
void check_sampling(const SamplingParams& params, int vocab_size);

/// Uniform double in [0, 1), a pure function of seed and index (counter-based: no state to carry, so that the n-th choice
/// of a request does not depend on what else runs). SplitMix64's finaliser, Steele et al. 2014.
double uniform_at(std::uint64_t seed, std::uint64_t index);

/// log-softmax of `logits` at `id`, and the `count` best tokens (lowest id first among equals), without a full sort.
TokenLogprob logprob_of(std::span<const float> logits, std::int32_t id);
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, int count);

class Sampler {
 public:
  /// `prompt` feeds the repetition penalty. Parameters must have passed check_sampling.
  Sampler(SamplingParams params, std::span<const std::int32_t> prompt, int vocab_size);

  /// True if the choice is the plain argmax of the logits, so that the backend may make it.
  bool plain_greedy() const { return plain_greedy_; }

  /// The next token. `logits` [vocab_size]; `allowed` is a bit mask of permitted tokens or empty for all.
  /// Does not record the token: call accept with what is kept. Throws Error{internal} when no token has a finite
  /// logit (a broken model file), Error{usage} when the mask forbids everything.
  std::int32_t sample(std::span<const float> logits, std::span<const std::uint32_t> allowed);

  void accept(std::int32_t token);

 private:
  struct Candidate {
    float logit;
    std::int32_t id;
  };

  void adjust(std::span<const float> logits, std::span<const std::uint32_t> allowed);
  std::int32_t argmax() const;
  std::int32_t draw();
  void select_best(std::size_t count);

  SamplingParams params_;
  int vocab_size_;
  bool plain_greedy_;
  std::uint64_t index_ = 0;                             // tokens accepted so far: the counter of the random numbers
  std::unordered_map<std::int32_t, int> generated_;     // occurrences in the answer
  std::unordered_map<std::int32_t, bool> seen_;         // in prompt or answer; kept only with a repetition penalty
  std::vector<float> adjusted_;                         // [vocab_size]
  std::vector<Candidate> candidates_;
};

}  // namespace heirloom::engine
