#include "backend/cpu/kernels/gdn_mixer/gdn_mixer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/kernels/tier_table.h"
#include "base/check.h"

namespace heirloom::cpu {
namespace {

constexpr int kConvTaps = 4;
// Rows that go through all stages together, so that what lies between the stages stays in the second-level cache.
constexpr int kBlockRows = 64;
// Up to this many tokens a tile's state is used where it lies; for more, a copy without gaps is worth making (rows of a
// state are 512 bytes apart, which maps a tile's lines to few cache sets).
constexpr int kInPlaceTokens = 2;

}  // namespace

const GdnKernels& gdn_kernels(CpuTier tier) {
#define HEIRLOOM_TABLE(isa, columns) \
  { isa::gdn_conv, isa::gdn_l2_norm, isa::gdn_dot, isa::gdn_gates, isa::gdn_delta, isa::gdn_gated_norm, columns }
  static constexpr GdnKernels kTables[4] = {HEIRLOOM_TABLE(scalar, 32), HEIRLOOM_TABLE(ssse3, 32),
                                            HEIRLOOM_TABLE(avx2, 32), HEIRLOOM_TABLE(avx512, 64)};
#undef HEIRLOOM_TABLE
  return tier_table(kTables, tier);
}

struct GdnMixer::Step {
  ThreadPool& pool;
  const GdnKernels& kernels;
  const ops::GdnWeights& w;
  ops::Matrix qkv, z, a, b, out;
  const ops::GdnTaps* taps;
  int nk, nv, dk, dv, channels;
  int block_row = 0, block_rows = 0;  // of the current block
  float *conv_out = nullptr, *g = nullptr, *decay = nullptr, *beta = nullptr, *qk_dot = nullptr;

  float* conv_row(int row) const { return conv_out + static_cast<std::ptrdiff_t>(row - block_row) * channels; }
  int key_head(int head) const { return w.v_heads_tiled ? head % nk : head / (nv / nk); }
};

void GdnMixer::run(ThreadPool& pool, CpuTier tier, const ops::StepPlan& plan, int layer, const ops::GdnWeights& weights,
                   ops::Matrix qkv, ops::Matrix z, ops::Matrix a, ops::Matrix b, ops::Matrix out, const ops::GdnTaps* taps) {
  HEIRLOOM_CHECK(plan.shape.conv_kernel == kConvTaps);
  Step step{pool, gdn_kernels(tier), weights, qkv, z, a, b, out, taps, weights.num_k_heads, weights.num_v_heads,
            weights.head_k_dim, weights.head_v_dim, plan.shape.conv_channels};
  const std::int64_t rows = std::min(plan.num_rows, kBlockRows);
  step.conv_out = conv_out_.get<float>(rows * step.channels);
  step.g = gates_.get<float>(rows * (3 * step.nv + step.nk));
  step.decay = step.g + rows * step.nv;
  step.beta = step.decay + rows * step.nv;
  step.qk_dot = step.beta + rows * step.nv;

  const std::ptrdiff_t conv_offset = static_cast<std::ptrdiff_t>(layer) * kConvTaps * step.channels;
  const std::ptrdiff_t state_offset = static_cast<std::ptrdiff_t>(layer) * step.nv * step.dk * step.dv;
  segments_.clear();
  step.block_rows = 0;
  const auto flush = [&] {
    if (step.block_rows > 0) run_block(step);
    segments_.clear();
    step.block_row += step.block_rows;
    step.block_rows = 0;
  };
  for (const ops::SequenceStep& sequence : plan.sequences) {
    std::size_t capture = 0;
    for (int done = 0; done < sequence.num_rows;) {
      // A segment ends with its sequence, its block or at a capture. A sequence goes on in the next block, never in the
      // same one: segments of a block run in parallel.
      int until = std::min(sequence.num_rows, done + kBlockRows - step.block_rows);
      const ops::StateCapture* captured = nullptr;
      while (capture < sequence.captures.size() && sequence.captures[capture].rows <= done) ++capture;
      if (capture < sequence.captures.size() && sequence.captures[capture].rows <= until) {
        captured = &sequence.captures[capture];
        until = captured->rows;
      }
      segments_.push_back({sequence.first_row + done, until - done, sequence.conv + conv_offset,
                           sequence.recurrent + state_offset, captured != nullptr ? captured->conv + conv_offset : nullptr,
                           captured != nullptr ? captured->recurrent + state_offset : nullptr});
      step.block_rows += until - done;
      done = until;
      if (done < sequence.num_rows || step.block_rows == kBlockRows) flush();
    }
  }
  flush();
}

void GdnMixer::run_block(const Step& step) {
  const auto segments = static_cast<std::int64_t>(segments_.size());
  const std::int64_t tokens = std::max<std::int64_t>(1, step.block_rows / segments);
  if (tokens <= kInPlaceTokens) {
    decode_block(step);
    return;
  }
  for (int row = step.block_row; row < step.block_row + step.block_rows; ++row) gate_heads(step, row, 0, step.nv);

  // Convolution and norms, a head of channels a task (a query head goes with its key head, for their product).
  const std::int64_t parts = step.nk + step.nv;
  const std::int64_t conv_grain = std::max<std::int64_t>(1, 4096 / (tokens * 2 * step.dk));
  step.pool.parallel_for(segments * parts, conv_grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      convolve(step, segments_[static_cast<std::size_t>(i / parts)], static_cast<int>(i % parts));
    }
  });

  const int width = step.kernels.tile_columns;
  const std::int64_t tiles = (step.dv + width - 1) / width;
  float* scratch = tiles_.get<float>(static_cast<std::int64_t>(step.pool.num_threads()) * step.dk * width);
  step.pool.parallel_for(segments * step.nv * tiles, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Segment& segment = segments_[static_cast<std::size_t>(i / (step.nv * tiles))];
      const int first = static_cast<int>(i % tiles) * width;
      delta_tile(step, segment, static_cast<int>(i / tiles % step.nv), first, std::min(width, step.dv - first),
                 scratch + static_cast<std::ptrdiff_t>(thread) * step.dk * width);
    }
  });
  step.pool.parallel_for(step.block_rows, rows_grain(step.nv * step.dv * 4), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = step.block_row + begin; row < step.block_row + end; ++row) {
      for (int head = 0; head < step.nv; ++head) finish_head(step, static_cast<int>(row), head);
    }
  });
}

/// Few tokens of each sequence. A task is a key head with its value heads, whose states are contiguous stretches of memory: one
/// loop for everything. Where that gives the threads too few tasks, or unequal shares, the value heads follow in a loop of their own.
void GdnMixer::decode_block(const Step& step) {
  const auto segments = static_cast<std::int64_t>(segments_.size());
  const int per_key = step.nv / step.nk, threads = step.pool.num_threads();
  const auto value_head = [&](const Segment& segment, int head) {
    for (int t = 0; t < segment.tokens; ++t) gate_heads(step, segment.first_row + t, head, 1);
    delta_tile(step, segment, head, 0, step.dv, nullptr);
    for (int t = 0; t < segment.tokens; ++t) finish_head(step, segment.first_row + t, head);
  };
  const std::int64_t tasks = segments * step.nk;
  if (tasks % threads == 0 || tasks >= 8 * threads) {
    step.pool.parallel_for(tasks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const Segment& segment = segments_[static_cast<std::size_t>(i / step.nk)];
        const int key_head = static_cast<int>(i % step.nk);
        convolve(step, segment, key_head);
        for (int j = 0; j < per_key; ++j) {
          const int head = step.w.v_heads_tiled ? key_head + j * step.nk : key_head * per_key + j;
          convolve(step, segment, step.nk + head);
          value_head(segment, head);
        }
      }
    });
    return;
  }
  step.pool.parallel_for(tasks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      convolve(step, segments_[static_cast<std::size_t>(i / step.nk)], static_cast<int>(i % step.nk));
    }
  });
  step.pool.parallel_for(segments * step.nv, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Segment& segment = segments_[static_cast<std::size_t>(i / step.nv)];
      const int head = static_cast<int>(i % step.nv);
      convolve(step, segment, step.nk + head);
      value_head(segment, head);
    }
  });
}

/// The gates of some value heads in a row.
void GdnMixer::gate_heads(const Step& step, int row, int first_head, int heads) const {
  const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(row) * step.nv + first_head;
  const std::ptrdiff_t to = at - static_cast<std::ptrdiff_t>(step.block_row) * step.nv;
  step.kernels.gates(step.a.data + at, step.b.data + at, step.w.dt_bias + first_head, step.w.neg_exp_a + first_head, heads,
                     step.g + to, step.decay + to, step.beta + to);
  const auto count = static_cast<std::size_t>(heads);
  if (step.taps != nullptr && step.taps->g != nullptr) std::copy_n(step.g + to, count, step.taps->g + at);
  if (step.taps != nullptr && step.taps->beta != nullptr) std::copy_n(step.beta + to, count, step.taps->beta + at);
}

/// Part j < nk: query head j and key head j; above that, value head j - nk.
void GdnMixer::convolve(const Step& step, const Segment& segment, int part) const {
  const std::ptrdiff_t channels = step.channels;
  const auto filter = [&](int first, int n) {
    step.kernels.conv(step.w.conv + static_cast<std::ptrdiff_t>(first) * kConvTaps, segment.conv + first,
                      step.qkv.data + segment.first_row * channels + first, channels, n, segment.tokens,
                      step.conv_row(segment.first_row) + first, channels);
    advance_conv_state(step, segment, first, n);
    if (step.taps != nullptr && step.taps->conv_out != nullptr) {
      for (int row = segment.first_row; row < segment.first_row + segment.tokens; ++row) {
        std::copy_n(step.conv_row(row) + first, n, step.taps->conv_out + row * channels + first);
      }
    }
  };
  if (part >= step.nk) {
    filter(2 * step.nk * step.dk + (part - step.nk) * step.dv, step.dv);
    return;
  }
  const int q_at = part * step.dk, k_at = (step.nk + part) * step.dk;
  filter(q_at, step.dk);
  filter(k_at, step.dk);
  for (int row = segment.first_row; row < segment.first_row + segment.tokens; ++row) {
    float *q = step.conv_row(row) + q_at, *k = step.conv_row(row) + k_at;
    step.kernels.l2_norm(q, step.dk);
    step.kernels.l2_norm(k, step.dk);
    step.qk_dot[static_cast<std::ptrdiff_t>(row - step.block_row) * step.nk + part] = step.kernels.dot(q, k, step.dk);
    if (step.taps == nullptr) continue;
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(row) * step.nk * step.dk + q_at;
    if (step.taps->q_l2norm != nullptr) std::copy_n(q, step.dk, step.taps->q_l2norm + at);
    if (step.taps->k_l2norm != nullptr) std::copy_n(k, step.dk, step.taps->k_l2norm + at);
  }
}

/// The window after the segment: its last four inputs, older ones from the window before it.
void GdnMixer::advance_conv_state(const Step& step, const Segment& segment, int first, int n) const {
  const std::ptrdiff_t channels = step.channels;
  const auto bytes = static_cast<std::size_t>(n) * sizeof(float);
  for (int j = 0; j < kConvTaps; ++j) {
    const int token = segment.tokens - kConvTaps + j;
    const float* from = token < 0 ? segment.conv + (kConvTaps + token) * channels + first
                                  : step.qkv.data + (segment.first_row + token) * channels + first;
    std::memcpy(segment.conv + j * channels + first, from, bytes);
    if (segment.captured_conv != nullptr) {
      std::memcpy(segment.captured_conv + j * channels + first, segment.conv + j * channels + first, bytes);
    }
  }
}

/// `tile`: memory for a copy of the columns' state, used for long segments; may be null for short ones.
void GdnMixer::delta_tile(const Step& step, const Segment& segment, int head, int first, int columns, float* tile) const {
  const int key_head = step.key_head(head);
  const int block_token = segment.first_row - step.block_row;
  float* row = step.conv_row(segment.first_row);
  float* state = segment.state + static_cast<std::ptrdiff_t>(head) * step.dk * step.dv + first;
  const auto bytes = static_cast<std::size_t>(columns) * sizeof(float);
  const bool copy = tile != nullptr && segment.tokens > kInPlaceTokens && columns < step.dv;
  if (copy) {
    for (int i = 0; i < step.dk; ++i) std::memcpy(tile + i * columns, state + i * step.dv, bytes);
  }
  step.kernels.delta({.state = copy ? tile : state,
                      .state_stride = copy ? columns : step.dv,
                      .head_k_dim = step.dk,
                      .columns = columns,
                      .tokens = segment.tokens,
                      .q = row + key_head * step.dk,
                      .k = row + (step.nk + key_head) * step.dk,
                      .qk_stride = step.channels,
                      .v = row + 2 * step.nk * step.dk + head * step.dv + first,
                      .v_stride = step.channels,
                      .decay = step.decay + block_token * step.nv + head,
                      .beta = step.beta + block_token * step.nv + head,
                      .gate_stride = step.nv,
                      .qk_dot = step.qk_dot + block_token * step.nk + key_head,
                      .dot_stride = step.nk,
                      .scale = 1.0f / std::sqrt(static_cast<float>(step.dk))});
  float* captured = segment.captured_state == nullptr
                        ? nullptr
                        : segment.captured_state + static_cast<std::ptrdiff_t>(head) * step.dk * step.dv + first;
  for (int i = 0; i < step.dk; ++i) {
    if (copy) std::memcpy(state + i * step.dv, tile + i * columns, bytes);
    if (captured != nullptr) std::memcpy(captured + i * step.dv, state + i * step.dv, bytes);
  }
}

void GdnMixer::finish_head(const Step& step, int row, int head) const {
  const float* y = step.conv_row(row) + 2 * step.nk * step.dk + head * step.dv;
  const std::ptrdiff_t at = (static_cast<std::ptrdiff_t>(row) * step.nv + head) * step.dv;
  if (step.taps != nullptr && step.taps->core_out != nullptr) std::copy_n(y, step.dv, step.taps->core_out + at);
  step.kernels.gated_norm(y, step.z.data + at, step.w.norm, step.w.eps, step.dv, step.out.data + at);
}

}  // namespace heirloom::cpu
