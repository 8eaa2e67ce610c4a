// How many prefill tokens a step may carry beside decoding sequences, from measured times: the step may take at most
// kStretch times as long as one without prefill, so that running streams slow down by less than two. Short prompts go
// at once, up to kBurstMs and as long as that is a small part of the time: cut into what fits beside a step of a quarter of a
// millisecond they would cost several times as much, and nobody sees the gap. Where prefill takes steps
// of its own (fixed_steps.h), as many decode steps follow each as keep the same bound on average.
#pragma once

#include <cstdint>

namespace heirloom::engine {

class StepBudget {
 public:
  explicit StepBudget(std::int64_t largest_chunk);

  /// Prefill tokens for the next step beside `decoding` sequences; 0 = measure a step without prefill first. `nearly_done`: tokens
  /// left of prompts that have no more than a chunk left.
  std::int64_t prefill_tokens(std::int64_t decoding, std::int64_t nearly_done) const;
  /// Whether streams that waited for prefill steps have not had their share yet.
  bool decode_is_due() const { return owed_ms_ > 0; }
  /// A step has run. `ms` includes sampling. `streams_waited`: it was a prefill step of its own while sequences were decoding.
  void note(std::int64_t decoding, std::int64_t prefill_tokens, double ms, bool streams_waited = false);

 private:
  std::int64_t largest_chunk_;
  double decode_ms_ = 0;            // of a step with decoding rows only
  std::int64_t decode_rows_ = -1;   // with this many
  std::int64_t mixed_steps_ = 0;    // since decode_ms_ was measured
  double ms_per_token_ = 0;         // of prefill, moving average
  double many_ms_ = 0, many_tokens_ = 0;  // of prefill in steps with many tokens, the last ones counting most
  double burst_ms_;                       // left for bursts
  double owed_ms_ = 0;              // of decode steps, for prefill steps that made streams wait
};

}  // namespace heirloom::engine
