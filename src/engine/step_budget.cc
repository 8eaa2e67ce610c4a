#include "engine/step_budget.h"

#include <algorithm>

namespace heirloom::engine {
namespace {

constexpr double kStretch = 1.8;               // of the allowed 2: room for noise
constexpr std::int64_t kSmallestChunk = 4;
constexpr double kBurstMs = 16;                // a frame of a screen
constexpr double kBurstShare = 1.0 / 16;       // of the time in which streams run
constexpr std::int64_t kManyTokens = 32;       // a burst, at least
constexpr std::int64_t kRemeasureSteps = 64;   // decoding gets slower as contexts grow

}  // namespace

StepBudget::StepBudget(std::int64_t largest_chunk) : largest_chunk_(largest_chunk), burst_ms_(kBurstMs) {}

std::int64_t StepBudget::prefill_tokens(std::int64_t decoding, std::int64_t nearly_done) const {
  if (decoding == 0) return largest_chunk_;
  const auto clamped = [&](double tokens) {
    return std::clamp(static_cast<std::int64_t>(std::min(tokens, 1e9)), kSmallestChunk, largest_chunk_);
  };
  if (many_ms_ > 0) {
    const std::int64_t burst = std::min(nearly_done, clamped(burst_ms_ * many_tokens_ / many_ms_));
    if (burst >= kManyTokens) return burst;
  }
  if (decode_rows_ != decoding || mixed_steps_ >= kRemeasureSteps) return 0;
  return ms_per_token_ > 0 ? clamped((kStretch - 1) * decode_ms_ / ms_per_token_) : kSmallestChunk;
}

void StepBudget::note(std::int64_t decoding, std::int64_t prefill_tokens, double ms, bool streams_waited) {
  if (streams_waited) owed_ms_ += ms / (kStretch - 1);
  if (decoding > 0) {
    owed_ms_ = std::max(0.0, owed_ms_ - ms);
    burst_ms_ = std::min(kBurstMs, burst_ms_ + kBurstShare * ms);
  }
  if (prefill_tokens == 0) {
    const bool same = decode_rows_ == decoding && decode_ms_ > 0;
    decode_ms_ = same ? 0.75 * decode_ms_ + 0.25 * ms : ms;
    decode_rows_ = decoding;
    mixed_steps_ = 0;
    return;
  }
  if (decoding > 0) ++mixed_steps_;
  const double extra = decoding > 0 ? std::max(ms - decode_ms_, 0.05 * ms) : ms;
  const double sample = extra / static_cast<double>(prefill_tokens);
  // Quick to believe that prefill got dearer (a longer context, a busy machine), slow to believe the opposite.
  const double share = sample > ms_per_token_ ? 0.5 : 0.1;
  ms_per_token_ = ms_per_token_ <= 0 ? sample : (1 - share) * ms_per_token_ + share * sample;
  if (prefill_tokens >= kManyTokens) {
    many_ms_ = 0.5 * many_ms_ + extra;
    many_tokens_ = 0.5 * many_tokens_ + static_cast<double>(prefill_tokens);
  }
  if (decoding > 0) burst_ms_ = std::max(0.0, burst_ms_ - std::max(0.0, extra - (kStretch - 1) * decode_ms_));
}

}  // namespace heirloom::engine
