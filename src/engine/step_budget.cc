#include "engine/step_budget.h"

#include <algorithm>

namespace heirloom::engine {
namespace {

constexpr double kStretch = 1.8;               // of the allowed 2: room for noise
constexpr std::int64_t kSmallestChunk = 4;
constexpr std::int64_t kRemeasureSteps = 64;   // decoding gets slower as contexts grow

}  // namespace

std::int64_t StepBudget::prefill_tokens(std::int64_t decoding) const {
  if (decoding == 0) return largest_chunk_;
  if (decode_rows_ != decoding || mixed_steps_ >= kRemeasureSteps) return 0;
  if (ms_per_token_ <= 0) return kSmallestChunk;
  const double tokens = (kStretch - 1) * decode_ms_ / ms_per_token_;
  return std::clamp(static_cast<std::int64_t>(std::min(tokens, 1e9)), kSmallestChunk, largest_chunk_);
}

void StepBudget::note(std::int64_t decoding, std::int64_t prefill_tokens, double ms, bool streams_waited) {
  if (streams_waited) owed_ms_ += ms / (kStretch - 1);
  if (decoding > 0) owed_ms_ = std::max(0.0, owed_ms_ - ms);
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
}

}  // namespace heirloom::engine
