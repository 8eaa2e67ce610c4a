#include "backend/cpu/kernels/attention/attention_mixer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/kernels/tier_table.h"
#include "base/check.h"

namespace heirloom::cpu {
namespace {

constexpr int kPage = ops::StateShape::kPageTokens;
static_assert(kAttentionBlock % kPage == 0);
// Query vectors (rows times heads of a group) of a chunk: enough to use a block of keys often, few enough that scores and
// sums stay in the second-level cache.
constexpr int kChunkVectors = 128;
// Partial results of the split form, at most: 64 MiB.
constexpr std::int64_t kMaxSplitFloats = 1 << 24;
// From this many vectors on, keys and values go through a page of floats that stays in the cache: widened once instead of
// once a tile, and read from memory in order (25 % on a prompt of 2000 tokens even for float32 caches).
constexpr int kUnpackVectors = 9;

KvFormat kv_format(DType type) {
  switch (type) {
    case DType::f16: return KvFormat::f16;
    case DType::bf16: return KvFormat::bf16;
    default: HEIRLOOM_CHECK(type == DType::f32); return KvFormat::f32;
  }
}

}  // namespace

const AttentionKernels& attention_kernels(CpuTier tier) {
#define HEIRLOOM_TABLE(isa)                                                            \
  {                                                                                    \
    isa::attention_norm_rope, isa::attention_rope,                                     \
    {isa::pack_f32, isa::pack_f16, isa::pack_bf16},                                    \
    {isa::unpack_f32, isa::unpack_f16, isa::unpack_bf16},                              \
    {isa::score_f32, isa::score_f16, isa::score_bf16}, isa::score_transposed,          \
    isa::attention_soften,                                                             \
    {isa::weigh_f32, isa::weigh_f16, isa::weigh_bf16}, isa::attention_merge,           \
    isa::attention_finish                                                              \
  }
  static constexpr AttentionKernels kTables[4] = {HEIRLOOM_TABLE(scalar), HEIRLOOM_TABLE(ssse3), HEIRLOOM_TABLE(avx2),
                                                  HEIRLOOM_TABLE(avx512)};
#undef HEIRLOOM_TABLE
  return tier_table(kTables, tier);
}

struct AttentionMixer::Step {
  ThreadPool& pool;
  const AttentionKernels& kernels;
  const ops::AttentionWeights& w;
  ops::Matrix q_gate, k, v;
  const float *rope_cos, *rope_sin;
  ops::Matrix out;
  const ops::AttentionTaps* taps;
  int layer, group, d, padded, rows;
  KvFormat format;
  std::size_t element_bytes;
  float scale;
  float* queries = nullptr;

  /// Query vectors of a KV head from `row` on; vector = (row, head of the group).
  float* query(int kv_head, int row) const {
    return queries + (static_cast<std::ptrdiff_t>(kv_head) * rows + row) * group * padded;
  }
  /// Keys (which = 0) or values (1) of a head in a page: [kPage, d].
  std::byte* page_part(std::byte* page, int which, int kv_head) const {
    const std::ptrdiff_t part = (static_cast<std::ptrdiff_t>(layer) * 2 + which) * w.num_kv_heads + kv_head;
    return page + part * kPage * d * static_cast<std::ptrdiff_t>(element_bytes);
  }
  std::int64_t thread_floats() const {
    return static_cast<std::int64_t>(kChunkVectors) * (kAttentionBlock + 2 * padded + 4) + static_cast<std::int64_t>(kPage) * padded;
  }
};

void AttentionMixer::run(ThreadPool& pool, CpuTier tier, const ops::StepPlan& plan, int layer,
                         const ops::AttentionWeights& w, ops::Matrix q_gate, ops::Matrix k, ops::Matrix v,
                         const float* rope_cos, const float* rope_sin, ops::Matrix out, const ops::AttentionTaps* taps) {
  const int group = w.num_q_heads / w.num_kv_heads;
  HEIRLOOM_CHECK(group >= 1 && group <= kChunkVectors);
  Step step{pool, attention_kernels(tier), w, q_gate, k, v, rope_cos, rope_sin, out, taps, layer, group, w.head_dim,
            padded_dims(w.head_dim), plan.num_rows, kv_format(plan.shape.kv_type),
            dtype_info(plan.shape.kv_type).block_bytes, 1.0f / std::sqrt(static_cast<float>(w.head_dim))};
  step.queries = queries_.get<float>(static_cast<std::int64_t>(w.num_q_heads) * plan.num_rows * step.padded);
  threads_.get<float>(pool.num_threads() * step.thread_floats());

  chunks_.clear();
  const int chunk_rows = std::max(1, kChunkVectors / group);
  int blocks = 0, most_vectors = 0;
  pool.parallel_for(plan.num_rows, rows_grain(4 * (q_gate.cols + k.cols)), [&](std::int64_t begin, std::int64_t end) {
    auto sequence = std::upper_bound(plan.sequences.begin(), plan.sequences.end(), begin,
                                     [](std::int64_t row, const ops::SequenceStep& s) { return row < s.first_row; }) - 1;
    for (std::int64_t row = begin; row < end; ++row) {
      while (row >= sequence->first_row + sequence->num_rows) ++sequence;
      prepare_row(step, *sequence, static_cast<int>(row - sequence->first_row));
    }
  });
  for (const ops::SequenceStep& sequence : plan.sequences) {
    for (int i = 0; i < sequence.num_rows; i += chunk_rows) {
      chunks_.push_back({&sequence, sequence.first_row + i, std::min(chunk_rows, sequence.num_rows - i),
                         sequence.past_tokens + i, blocks});
      blocks += chunks_.back().blocks();
      most_vectors = std::max(most_vectors, chunks_.back().rows * group);
    }
  }
  // With chunks enough for the threads each goes over its keys in one task; otherwise blocks of keys are shared out too,
  // unless their partial results would take more memory than that is worth.
  const auto units = static_cast<int>(chunks_.size()) * w.num_kv_heads;
  const std::int64_t split_floats = static_cast<std::int64_t>(blocks) * w.num_kv_heads * most_vectors * (step.padded + 2);
  if (units >= 4 * pool.num_threads() || pool.num_threads() == 1 || split_floats > kMaxSplitFloats) {
    run_whole(step);
  } else {
    run_split(step, most_vectors);
  }
}

/// Norms and rotates a row's queries and keys, and appends keys and values to their page.
void AttentionMixer::prepare_row(const Step& step, const ops::SequenceStep& sequence, int index) const {
  const int row = sequence.first_row + index, d = step.d, half = step.w.rotary_dim / 2;
  const int position = sequence.past_tokens + index;
  const float *cos = step.rope_cos + static_cast<std::ptrdiff_t>(row) * half, *sin = step.rope_sin + static_cast<std::ptrdiff_t>(row) * half;
  const auto tap = [&](float* to, int heads, int head, const float* from) {
    if (to != nullptr) std::copy_n(from, d, to + (static_cast<std::ptrdiff_t>(row) * heads + head) * d);
  };
  const auto turn = [&](const float* x, const float* weight, float* out, float* norm_tap, float* rope_tap, int heads, int head) {
    if (norm_tap == nullptr && rope_tap == nullptr) {
      step.kernels.norm_rope(x, weight, step.w.eps, d, cos, sin, half, out, out);
      return;
    }
    step.kernels.norm_rope(x, weight, step.w.eps, d, cos, sin, 0, out, out);
    tap(norm_tap, heads, head, out);
    step.kernels.rope(out, cos, sin, half, d, out);
    tap(rope_tap, heads, head, out);
  };
  const ops::AttentionTaps none, &taps = step.taps != nullptr ? *step.taps : none;

  for (int head = 0; head < step.w.num_q_heads; ++head) {
    const float* q = step.q_gate.data + (static_cast<std::ptrdiff_t>(row) * step.w.num_q_heads + head) * 2 * d;
    float* out = step.query(head / step.group, row) + head % step.group * step.padded;
    turn(q, step.w.q_norm, out, taps.q_norm, taps.q_rope, step.w.num_q_heads, head);
    std::fill(out + d, out + step.padded, 0.0f);
    tap(taps.gate, step.w.num_q_heads, head, q + d);
  }
  std::byte* page = sequence.pages[static_cast<std::size_t>(position / kPage)];
  const std::size_t offset = static_cast<std::size_t>(position % kPage) * static_cast<std::size_t>(d) * step.element_bytes;
  const auto pack = step.kernels.pack[static_cast<int>(step.format)];
  constexpr int kStackDims = 1024;
  float stack_key[kStackDims];
  HEIRLOOM_CHECK(d <= kStackDims);
  for (int head = 0; head < step.w.num_kv_heads; ++head) {
    const std::ptrdiff_t at = (static_cast<std::ptrdiff_t>(row) * step.w.num_kv_heads + head) * d;
    turn(step.k.data + at, step.w.k_norm, stack_key, taps.k_norm, taps.k_rope, step.w.num_kv_heads, head);
    pack(stack_key, d, step.page_part(page, 0, head) + offset);
    pack(step.v.data + at, d, step.page_part(page, 1, head) + offset);
  }
}

/// The chunk's vectors over one block of keys. `scratch`: kChunkVectors x kAttentionBlock scores, then a page as floats. A vector
/// whose row lies before the block gets total 0.
void AttentionMixer::attend_block(const Step& step, const Chunk& chunk, int kv_head, int block, float* scratch,
                                  Partial* partials, float* sums) const {
  const int vectors = chunk.rows * step.group, first_token = block * kAttentionBlock;
  const int tokens = std::min(kAttentionBlock, chunk.position + chunk.rows - first_token);  // that the last row sees
  const float* q = step.query(kv_head, chunk.first_row);
  float* scores = scratch;
  float* page_floats = scratch + static_cast<std::ptrdiff_t>(kChunkVectors) * kAttentionBlock;
  const bool unpack = step.padded != step.d || vectors >= kUnpackVectors;
  const auto format = static_cast<int>(unpack ? KvFormat::f32 : step.format);

  const auto over_pages = [&](int which, const auto& use) {
    for (int t = 0; t < tokens; t += kPage) {
      const int count = std::min(kPage, tokens - t);
      const std::byte* from = step.page_part(chunk.sequence->pages[static_cast<std::size_t>((first_token + t) / kPage)], which, kv_head);
      if (!unpack) {
        use(from, t, count);
        continue;
      }
      const auto widen = step.kernels.unpack[static_cast<int>(step.format)];
      if (step.padded == step.d) {
        widen(from, count * step.d, page_floats);
      } else {
        for (int i = 0; i < count; ++i) {
          widen(from + static_cast<std::size_t>(i * step.d) * step.element_bytes, step.d, page_floats + i * step.padded);
          std::fill(page_floats + i * step.padded + step.d, page_floats + (i + 1) * step.padded, 0.0f);
        }
      }
      use(page_floats, t, count);
    }
  };
  over_pages(0, [&](const void* keys, int t, int count) {
    // Rounded up to whole tiles: a page always has 64 keys, and scores past the valid ones are overwritten below.
    step.kernels.score[format](q, vectors, keys, (count + 15) / 16 * 16, step.padded, scores + t, kAttentionBlock);
  });
  for (int i = 0; i < vectors; ++i) {
    const int valid = std::min(kAttentionBlock, chunk.position + i / step.group + 1 - first_token);
    float* row = scores + static_cast<std::ptrdiff_t>(i) * kAttentionBlock;
    if (valid > 0) {
      partials[i] = step.kernels.soften(row, valid, tokens, step.scale);
    } else {
      partials[i] = {0, 0};
      std::fill(row, row + tokens, 0.0f);
    }
  }
  over_pages(1, [&](const void* values, int t, int count) {
    step.kernels.weigh[format](scores + t, kAttentionBlock, vectors, values, count, step.padded, sums, t > 0);
  });
}

void AttentionMixer::finish_vector(const Step& step, const Chunk& chunk, int kv_head, int vector, float total,
                                   const float* sums) const {
  const std::ptrdiff_t row = chunk.first_row + vector / step.group;
  const std::ptrdiff_t head = row * step.w.num_q_heads + kv_head * step.group + vector % step.group;
  step.kernels.finish(sums, total, step.q_gate.data + (2 * head + 1) * step.d, step.d, step.out.data + head * step.d);
}

void AttentionMixer::run_whole(const Step& step) {
  const std::int64_t units = static_cast<std::int64_t>(chunks_.size()) * step.w.num_kv_heads;
  float* memory = threads_.get<float>(step.pool.num_threads() * step.thread_floats());
  step.pool.parallel_for(units, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    float* scratch = memory + thread * step.thread_floats();
    float* sums = scratch + static_cast<std::ptrdiff_t>(kChunkVectors) * kAttentionBlock + static_cast<std::ptrdiff_t>(kPage) * step.padded;
    float* block_sums = sums + static_cast<std::ptrdiff_t>(kChunkVectors) * step.padded;
    Partial totals[kChunkVectors], partials[kChunkVectors];
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const Chunk& chunk = chunks_[static_cast<std::size_t>(unit / step.w.num_kv_heads)];
      const int kv_head = static_cast<int>(unit % step.w.num_kv_heads);
      const int vectors = chunk.rows * step.group;
      attend_block(step, chunk, kv_head, 0, scratch, totals, sums);
      for (int block = 1; block < chunk.blocks(); ++block) {
        attend_block(step, chunk, kv_head, block, scratch, partials, block_sums);
        for (int i = 0; i < vectors; ++i) {
          if (partials[i].total == 0) continue;
          step.kernels.merge(&totals[i], sums + i * step.padded, &partials[i], block_sums + i * step.padded, step.padded, step.scale);
        }
      }
      for (int i = 0; i < vectors; ++i) finish_vector(step, chunk, kv_head, i, totals[i].total, sums + i * step.padded);
    }
  });
}

void AttentionMixer::run_split(const Step& step, int most_vectors) {
  const int kv_heads = step.w.num_kv_heads;
  const std::int64_t blocks = chunks_.back().first_block + chunks_.back().blocks();
  // Partials and sums of task (block of a chunk, KV head): slots of `most_vectors` each.
  const std::int64_t slots = blocks * kv_heads * most_vectors;
  float* memory = threads_.get<float>(step.pool.num_threads() * step.thread_floats());
  float* sums = partials_.get<float>(slots * (step.padded + 2));
  auto* partials = reinterpret_cast<Partial*>(sums + slots * step.padded);
  const auto slot = [&](std::int64_t block, int kv_head) { return (block * kv_heads + kv_head) * most_vectors; };

  step.pool.parallel_for(blocks * kv_heads, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    for (std::int64_t task = begin; task < end; ++task) {
      const auto block = static_cast<int>(task / kv_heads);
      const int kv_head = static_cast<int>(task % kv_heads);
      const auto after = std::upper_bound(chunks_.begin(), chunks_.end(), block,
                                          [](int b, const Chunk& chunk) { return b < chunk.first_block; });
      const Chunk& chunk = *(after - 1);
      const std::int64_t at = slot(block, kv_head);
      attend_block(step, chunk, kv_head, block - chunk.first_block, memory + thread * step.thread_floats(), partials + at,
                   sums + at * step.padded);
    }
  });
  const std::int64_t units = static_cast<std::int64_t>(chunks_.size()) * kv_heads;
  const std::int64_t grain = std::max<std::int64_t>(1, rows_grain(most_vectors * step.padded * (blocks / static_cast<std::int64_t>(chunks_.size()) + 1)));
  step.pool.parallel_for(units, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const Chunk& chunk = chunks_[static_cast<std::size_t>(unit / kv_heads)];
      const int kv_head = static_cast<int>(unit % kv_heads);
      for (int i = 0; i < chunk.rows * step.group; ++i) {
        const std::int64_t first = slot(chunk.first_block, kv_head) + i;
        for (int block = 1; block < chunk.blocks(); ++block) {
          const std::int64_t at = slot(chunk.first_block + block, kv_head) + i;
          if (partials[at].total == 0) continue;
          step.kernels.merge(&partials[first], sums + first * step.padded, &partials[at], sums + at * step.padded, step.padded, step.scale);
        }
        finish_vector(step, chunk, kv_head, i, partials[first].total, sums + first * step.padded);
      }
    }
  });
}

}  // namespace heirloom::cpu
