#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace heirloom::engine {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ull;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

/// Larger logit first, then lower id: a total order, so that equal logits never depend on the selection algorithm.
template <typename T>
bool better(const T& a, const T& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

double log_sum_exp(std::span<const float> logits) {
  float largest = kMinusInfinity;
  for (const float value : logits) largest = std::max(largest, value);
  double sum = 0;
  for (const float value : logits) sum += std::exp(static_cast<double>(value - largest));
  return static_cast<double>(largest) + std::log(sum);
}

void check_range(const char* name, float value, float low, float high) {
  if (!(value >= low && value <= high)) {
    fail(ErrorKind::usage, "{} is {}; expected a number from {} to {}", name, value, low, high);
  }
}

}  // namespace

void check_sampling(const SamplingParams& params, int vocab_size) {
  check_range("temperature", params.temperature, 0.0f, 100.0f);
  check_range("top_p", params.top_p, 0.0f, 1.0f);
  check_range("min_p", params.min_p, 0.0f, 1.0f);
  check_range("presence_penalty", params.presence_penalty, -100.0f, 100.0f);
  check_range("frequency_penalty", params.frequency_penalty, -100.0f, 100.0f);
  check_range("repetition_penalty", params.repetition_penalty, 1e-3f, 1e3f);
  if (params.top_k < 0) fail(ErrorKind::usage, "top_k is {}; expected 0 (off) or a positive number", params.top_k);
  for (const auto& [id, bias] : params.logit_bias) {
    if (id < 0 || id >= vocab_size) {
      fail(ErrorKind::usage, "logit_bias names token {}; this model has tokens 0 to {}", id, vocab_size - 1);
    }
    if (std::isnan(bias)) fail(ErrorKind::usage, "logit_bias of token {} is not a number", id);
  }
}

double uniform_at(std::uint64_t seed, std::uint64_t index) {
  return static_cast<double>(mix(mix(seed) ^ index) >> 11) * 0x1p-53;
}

TokenLogprob logprob_of(std::span<const float> logits, std::int32_t id) {
  const double value = static_cast<double>(logits[static_cast<std::size_t>(id)]) - log_sum_exp(logits);
  return {id, static_cast<float>(value)};
}

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, int count) {
  struct Entry {
    float logit;
    std::int32_t id;
  };
  const std::size_t wanted = std::min(static_cast<std::size_t>(std::max(count, 0)), logits.size());
  std::vector<Entry> heap;  // the worst of the best on top
  heap.reserve(wanted + 1);
  for (std::size_t i = 0; i < logits.size() && wanted > 0; ++i) {
    const Entry entry{logits[i], static_cast<std::int32_t>(i)};
    if (heap.size() == wanted && !better(entry, heap.front())) continue;
    heap.push_back(entry);
    std::push_heap(heap.begin(), heap.end(), better<Entry>);
    if (heap.size() > wanted) {
      std::pop_heap(heap.begin(), heap.end(), better<Entry>);
      heap.pop_back();
    }
  }
  std::sort(heap.begin(), heap.end(), better<Entry>);
  const double total = wanted > 0 ? log_sum_exp(logits) : 0.0;
  std::vector<TokenLogprob> result;
  for (const Entry& entry : heap) {
    result.push_back({entry.id, static_cast<float>(static_cast<double>(entry.logit) - total)});
  }
  return result;
}

Sampler::Sampler(SamplingParams params, std::span<const std::int32_t> prompt, int vocab_size)
    : params_(std::move(params)), vocab_size_(vocab_size) {
  plain_greedy_ = params_.temperature == 0.0f && params_.presence_penalty == 0.0f && params_.frequency_penalty == 0.0f &&
                  params_.repetition_penalty == 1.0f && params_.logit_bias.empty();
  if (params_.repetition_penalty != 1.0f) {
    for (const std::int32_t id : prompt) seen_.emplace(id, true);
  }
}

void Sampler::accept(std::int32_t token) {
  ++index_;
  if (plain_greedy_) return;
  ++generated_[token];
  if (params_.repetition_penalty != 1.0f) seen_.emplace(token, true);
}

void Sampler::adjust(std::span<const float> logits, std::span<const std::uint32_t> allowed) {
  adjusted_.assign(logits.begin(), logits.end());
  for (const auto& [id, bias] : params_.logit_bias) adjusted_[static_cast<std::size_t>(id)] += bias;
  if (params_.repetition_penalty != 1.0f) {
    for (const auto& [id, unused] : seen_) {
      float& value = adjusted_[static_cast<std::size_t>(id)];
      value = value > 0 ? value / params_.repetition_penalty : value * params_.repetition_penalty;
    }
  }
  if (params_.presence_penalty != 0.0f || params_.frequency_penalty != 0.0f) {
    for (const auto& [id, count] : generated_) {
      adjusted_[static_cast<std::size_t>(id)] -=
          params_.presence_penalty + params_.frequency_penalty * static_cast<float>(count);
    }
  }
  if (allowed.empty()) return;
  for (std::size_t i = 0; i < adjusted_.size(); ++i) {
    if ((allowed[i / 32] >> (i % 32) & 1u) == 0) adjusted_[i] = kMinusInfinity;
  }
}

std::int32_t Sampler::argmax() const {
  std::int32_t best = -1;
  float value = kMinusInfinity;
  for (std::size_t i = 0; i < adjusted_.size(); ++i) {
    if (adjusted_[i] > value) {
      value = adjusted_[i];
      best = static_cast<std::int32_t>(i);
    }
  }
  return best;
}

std::int32_t Sampler::sample(std::span<const float> logits, std::span<const std::uint32_t> allowed) {
  HEIRLOOM_CHECK(logits.size() == static_cast<std::size_t>(vocab_size_));
  adjust(logits, allowed);
  const std::int32_t best = argmax();
  if (best < 0) {
    bool finite = false;
    for (const float value : logits) finite = finite || std::isfinite(value);
    if (finite) fail(ErrorKind::usage, "the constraint and the logit bias together forbid every token");
    fail(ErrorKind::internal, "the model gave no finite logit; its weights are probably damaged");
  }
  if (params_.temperature == 0.0f || adjusted_[static_cast<std::size_t>(best)] == -kMinusInfinity) return best;
  return draw();
}

/// Leaves the `count` best of candidates_ (all of them if fewer), best first.
void Sampler::select_best(std::size_t count) {
  if (count < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(count), candidates_.end(),
                     better<Candidate>);
    candidates_.resize(count);
  }
  std::sort(candidates_.begin(), candidates_.end(), better<Candidate>);
}

std::int32_t Sampler::draw() {
  float largest = kMinusInfinity;
  candidates_.clear();
  for (std::size_t i = 0; i < adjusted_.size(); ++i) {
    // NaN fails this test too and is never chosen.
    if (!(adjusted_[i] > kMinusInfinity)) continue;
    candidates_.push_back({adjusted_[i], static_cast<std::int32_t>(i)});
    largest = std::max(largest, adjusted_[i]);
  }
  const double scale = 1.0 / static_cast<double>(params_.temperature);
  const auto weight = [&](const Candidate& candidate) {
    return std::exp((static_cast<double>(candidate.logit) - static_cast<double>(largest)) * scale);
  };
  if (params_.top_k > 0) select_best(static_cast<std::size_t>(params_.top_k));
  if (params_.top_p < 1.0f) {
    double total = 0;
    for (const Candidate& candidate : candidates_) total += weight(candidate);
    const double target = static_cast<double>(params_.top_p) * total;
    // Only as many as needed are put in order: the nucleus is nearly always small.
    std::vector<Candidate> all;
    std::size_t ordered = candidates_.size();
    if (params_.top_k == 0) {
      all = candidates_;
      ordered = std::min<std::size_t>(256, all.size());
      select_best(ordered);
    }
    double sum = 0;
    std::size_t kept = 0;
    for (;;) {
      while (kept < candidates_.size() && (kept == 0 || sum < target)) sum += weight(candidates_[kept++]);
      if (kept < candidates_.size() || sum >= target || ordered >= all.size()) break;
      ordered = std::min(ordered * 16, all.size());
      candidates_ = all;
      select_best(ordered);
    }
    candidates_.resize(std::max<std::size_t>(kept, 1));
  }
  if (params_.min_p > 0.0f) {
    const double threshold = static_cast<double>(params_.min_p);
    std::erase_if(candidates_, [&](const Candidate& candidate) { return weight(candidate) < threshold; });
  }
  double total = 0;
  for (const Candidate& candidate : candidates_) total += weight(candidate);
  const double point = uniform_at(params_.seed, index_) * total;
  double sum = 0;
  for (const Candidate& candidate : candidates_) {
    sum += weight(candidate);
    if (point < sum) return candidate.id;
  }
  return candidates_.back().id;
}

}  // namespace heirloom::engine
