// Runs requests on one thread with continuous batching: requests join and leave between steps, prompts are prefilled in
// chunks beside decoding sequences. Owns the order of things, states and finish reasons; where a prompt may start and
// which snapshots to leave is prefix_cache.h's, how many prefill tokens fit beside decoding step_budget.h's.
//
// A row's result depends only on its own sequence (ops/backend.h), so that answers are the same alone and in a batch. Where
// that does not hold, steps are fixed (fixed_steps.h): prefill and decoding take turns, one prompt at a time.
// Chunk ends are multiples of the chunk's size, a power of two, from the prompt's start.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/profiler.h"
#include "engine/doorbell.h"
#include "engine/feature_cache.h"
#include "engine/prefix_cache.h"
#include "engine/live_sequence.h"
#include "engine/step_budget.h"
#include "model/model.h"

namespace heirloom::engine {

class Scheduler {
 public:
  struct Options {
    int slots = 1;
    std::int64_t largest_chunk = 512;            // prefill tokens in a step; a power of two
    std::vector<std::int32_t> end_tokens;
    std::uint64_t feature_bytes = 0;             // picture features kept for reuse
    std::uint64_t ready_bytes = 0;               // of memory for states, got from the OS while idle
    std::uint64_t most_ready_bytes = 0;          // where that ends, of all memory for states
    std::shared_ptr<Doorbell> doorbell;          // rung by the cache's disk thread; may be null
    Profiler* profiler = nullptr;
  };

  /// All arguments must outlive the scheduler, and be used by its thread only.
  Scheduler(model::Model& model, StatePool& pool, PrefixCache& cache, Options options);
  /// Cancels what runs.
  ~Scheduler();

  std::shared_ptr<RequestHandle> submit(Job job);
  EngineMetrics metrics() const;

 private:
  using SequencePtr = std::unique_ptr<Sequence>;
  /// A sequence's part of a step.
  struct Part {
    Sequence* sequence = nullptr;
    std::int32_t first_row = 0, rows = 0;
    bool decoding = false;
    std::vector<PlannedSnapshot> captures;  // inside the part
    std::int64_t logits_row = -1;           // in StepOutput::logits
  };

  void run();
  void take_inbox();
  void reap_cancelled();
  void admit();
  void wait_idle();
  void poll_loads();
  void start(Sequence& sequence);
  void begin(Sequence& sequence);
  void step();
  void recover(const std::vector<Part>& parts, const Error& error);
  void restart(Sequence& sequence);
  std::vector<Part> compose();
  std::int64_t chunk_end(const Sequence& sequence, std::int64_t budget) const;
  std::int64_t encode_needed(Sequence& sequence, std::int64_t end, bool one_only);
  model::StepInput make_input(std::vector<Part>& parts);
  void note_history(Sequence& sequence, const Part& part) const;
  void after_forward(std::vector<Part>& parts, const model::StepOutput& output);
  void after_part(Part& part, const model::StepOutput& output, std::span<const std::int32_t> greedy_ids);
  void take_snapshots(Sequence& sequence, const Part& part, std::span<const float> logits,
                      std::vector<SnapshotRef> captured);
  void snapshot_answer(Sequence& sequence);
  SnapshotRef copy_state(Sequence& sequence, std::span<const float> logits);
  /// Whether a long chunk can leave snapshots inside.
  bool captures() const { return model_.backend().captures_states() && cache_.fixed_step() == 0; }
  std::span<const float> host_logits(const model::StepOutput& output, std::int64_t row);
  void sum_hidden(Sequence& sequence, const Part& part, const model::StepOutput& output);
  void choose_token(Sequence& sequence, std::span<const float> logits, std::int32_t greedy_id);
  void emit_token(Sequence& sequence, std::int32_t id, std::span<const float> logits);
  void finish(Sequence& sequence, FinishReason reason);
  void fail(Sequence& sequence, const Error& error);
  template <typename Work>
  bool guarded(Sequence& sequence, Work&& work);
  void publish_metrics();
  bool is_end(std::int32_t id) const;

  model::Model& model_;
  StatePool& pool_;
  PrefixCache& cache_;
  Options options_;
  StepBudget budget_;
  FeatureCache features_;
  ops::Buffer argmax_ids_;
  std::vector<float> downloaded_;       // one row of logits or some of hidden
  std::vector<SequencePtr> active_;     // at most options_.slots
  std::deque<SequencePtr> waiting_;     // first come, first served
  std::size_t rotation_ = 0;            // which prefilling sequence goes first in the next step
  EngineMetrics counters_;              // engine's thread

  mutable std::mutex mutex_;
  std::deque<SequencePtr> inbox_;
  EngineMetrics published_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace heirloom::engine
