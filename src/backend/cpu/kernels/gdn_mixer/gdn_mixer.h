// Gated DeltaNet between its projections: how the work of a step is cut among threads and caches, and the memory that it
// needs between stages. The arithmetic is in the tier's kernels (gdn_kernels.h).
#pragma once

#include <vector>

#include "backend/cpu/kernels/gdn_mixer/gdn_kernels.h"
#include "backend/cpu/kernels/linear/activations.h"
#include "base/cpu_features.h"
#include "base/thread_pool.h"
#include "ops/backend.h"

namespace heirloom::cpu {

const GdnKernels& gdn_kernels(CpuTier tier);

class GdnMixer {
 public:
  /// ops::Backend::gdn_mixer for layer `layer` of `plan`, states and captures included. conv_kernel is 4, as the models have
  /// it. Allocates only when a step is larger than every one before.
  void run(ThreadPool& pool, CpuTier tier, const ops::StepPlan& plan, int layer, const ops::GdnWeights& weights,
           ops::Matrix qkv, ops::Matrix z, ops::Matrix a, ops::Matrix b, ops::Matrix out, const ops::GdnTaps* taps);

 private:
  /// Consecutive tokens of one sequence inside a block of rows.
  struct Segment {
    int first_row;   // in the step
    int tokens;
    float* conv;     // this layer's conv state
    float* state;    // this layer's recurrent state
    float* captured_conv;   // where to copy them after the segment, or null
    float* captured_state;
  };
  struct Step;

  void run_block(const Step& step);
  void decode_block(const Step& step);
  void gate_heads(const Step& step, int row, int first_head, int heads) const;
  void convolve(const Step& step, const Segment& segment, int part) const;
  void advance_conv_state(const Step& step, const Segment& segment, int first_channel, int channels) const;
  void delta_tile(const Step& step, const Segment& segment, int head, int first_column, int columns, float* tile) const;
  void finish_head(const Step& step, int row, int head) const;

  std::vector<Segment> segments_;
  Scratch conv_out_;  // [block rows, conv_channels]: q, k (normalised), v (then y)
  Scratch gates_;     // [block rows, 3 nv + nk]: g, decay, beta, q . k
  Scratch tiles_;     // [threads, head_k_dim, tile_columns]
};

}  // namespace heirloom::cpu
