// Softmax attention between its projections: how a step is cut among threads, and the KV pages. The arithmetic is in the
// tier's kernels (attention_kernels.h).
#pragma once

#include <vector>

#include "backend/cpu/kernels/attention/attention_kernels.h"
#include "backend/cpu/kernels/linear/activations.h"
#include "base/cpu_features.h"
#include "base/thread_pool.h"
#include "ops/backend.h"

namespace heirloom::cpu {

const AttentionKernels& attention_kernels(CpuTier tier);

/// Dims as the kernels want them: a multiple of 16, the added ones zero.
constexpr int padded_dims(int d) { return (d + 15) / 16 * 16; }

class AttentionMixer {
 public:
  /// ops::Backend::attention_mixer for layer `layer` of `plan`. Allocates only when a step is larger than every one before.
  void run(ThreadPool& pool, CpuTier tier, const ops::StepPlan& plan, int layer, const ops::AttentionWeights& weights,
           ops::Matrix q_gate, ops::Matrix k, ops::Matrix v, const float* rope_cos, const float* rope_sin, ops::Matrix out,
           const ops::AttentionTaps* taps);

 private:
  struct Step;
  /// Rows of one sequence that pass over the keys together.
  struct Chunk {
    const ops::SequenceStep* sequence;
    int first_row;   // in the step
    int rows;
    int position;    // of the first row
    int first_block; // of this chunk among all chunks' blocks, for the split form
    int blocks() const { return (position + rows + kAttentionBlock - 1) / kAttentionBlock; }
  };

  void prepare_row(const Step& step, const ops::SequenceStep& sequence, int index) const;
  void attend_block(const Step& step, const Chunk& chunk, int kv_head, int block, float* scratch, Partial* partials,
                    float* sums) const;
  void run_whole(const Step& step);
  void run_split(const Step& step, int most_vectors);
  void finish_vector(const Step& step, const Chunk& chunk, int kv_head, int vector, float total, const float* sums) const;

  std::vector<Chunk> chunks_;
  Scratch queries_;   // [num_kv_heads, rows, group, padded dims]
  Scratch threads_;   // per thread: scores, a page as floats, sums and partials
  Scratch partials_;  // split form: [blocks of all chunks, num_kv_heads, vectors] partials, then their sums
};

}  // namespace heirloom::cpu
