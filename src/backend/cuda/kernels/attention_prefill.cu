// The small kernels around attention by matrix products (scores = q K^T and out = P V are GEMMs over contiguous K, V):
//   kv_gather        pages of one layer and head -> contiguous [all_rows][hd] of K and V, zeros after `tokens` rows
//   softmax_rows     rows of scores -> probabilities, in place or as bf16; row r of a head sees first_valid + r columns (causal) or all
//   gate_multiply    out *= sigmoid(gate), gate from q_gate [T, nh, 2, hd]
//   rope_heads       rotate-half over whole heads (vision towers)
// Scores lie in a buffer of at most 512 rows by the context, so memory grows with the context and not with its square.
#include "backend/cuda/kernels/bf16_twin.h"
#include "backend/cuda/kernels/block_reduce.h"
#include "backend/cuda/kernels/kv_cache.h"
#include "backend/cuda/kernels/quads.h"

DEVICE void put(float* p, float v) { *p = v; }
DEVICE void put(u16* p, float v) { *p = f32_to_bf16(v); }

template <class T>
DEVICE void kv_gather_rows(T* k, T* v, const StepSequence* sequences, int sequence, int layer, int head, int num_kv_heads,
                           int head_dim, int tokens, int all_rows, int kv_type) {
  gpu_wait_inputs();
  const u8* const* pages = sequences[sequence].pages;
  const u64 k_at = kv_offset(layer, 0, head, num_kv_heads, head_dim), v_at = kv_offset(layer, 1, head, num_kv_heads, head_dim);
  const u64 total = (u64)all_rows * (u64)head_dim, known = (u64)tokens * (u64)head_dim, page_values = (u64)(kPageTokens * head_dim);
  for (u64 i = (u64)bid_x() * 256 + (u64)tid_x(); i < total; i += (u64)nbid_x() * 256) {
    if (i >= known) {
      put(k + i, 0.0f);
      put(v + i, 0.0f);
      continue;
    }
    const u8* page = pages[i / page_values];
    const u64 at = i % page_values;
    put(k + i, kv_load(page, k_at + at, kv_type));
    put(v + i, kv_load(page, v_at + at, kv_type));
  }
}
KERNEL(kv_gather, 256, float* k, float* v, const StepSequence* sequences, int sequence, int layer, int head, int num_kv_heads,
       int head_dim, int tokens, int all_rows, int kv_type) {
  kv_gather_rows(k, v, sequences, sequence, layer, head, num_kv_heads, head_dim, tokens, all_rows, kv_type);
}
KERNEL(kv_gather_bf16, 256, u16* k, u16* v, const StepSequence* sequences, int sequence, int layer, int head, int num_kv_heads,
       int head_dim, int tokens, int all_rows, int kv_type) {
  kv_gather_rows(k, v, sequences, sequence, layer, head, num_kv_heads, head_dim, tokens, all_rows, kv_type);
}

// Reductions of `Rows` values at once by block_reduce, in its order.
template <int Rows, class Op>
DEVICE void reduce_rows(float (&v)[Rows], float* scratch, Op op) {
  const int t = tid_x();
  gpu_sync();
  UNROLL for (int r = 0; r < Rows; r++) scratch[r * 288 + t] = v[r];
  gpu_sync();
  if (t < 32 * Rows) {
    float* of_row = scratch + t / 32 * 288;
    float sum = of_row[t % 32];
    UNROLL for (int i = 1; i < 8; i++) sum = op(sum, of_row[t % 32 + 32 * i]);
    of_row[256 + t % 32] = sum;
  }
  gpu_sync();
  if (t < 4 * Rows) {
    float* of_row = scratch + t / 4 * 288;
    float sum = of_row[256 + t % 4];
    UNROLL for (int i = 1; i < 8; i++) sum = op(sum, of_row[256 + 4 * i + t % 4]);
    of_row[t % 4] = sum;
  }
  gpu_sync();
  UNROLL for (int r = 0; r < Rows; r++) {
    const F4 total = *(const F4*)(scratch + r * 288);
    v[r] = op(op(total.x, total.y), op(total.z, total.w));
  }
}

// Rows of at most 256 * Held columns: a block takes `Rows` of them at a time, which share its barriers, with all values in registers.
template <int Rows, int Held, class T>
DEVICE void softmax_of_short_rows(T* out, const float* scores, int rows, int cols, int pitch, int causal, int first_valid, float* scratch) {
  const int t = tid_x();
  for (int first = bid_x() * Rows; first < rows; first += nbid_x() * Rows) {
    float held[Rows][Held], of_row[Rows];
    int n[Rows];
    UNROLL for (int r = 0; r < Rows; r++) {
      const int at = first + r;
      n[r] = at >= rows ? 0 : causal ? gpu_min_i(cols, first_valid + at % causal) : cols;
      of_row[r] = -3.0e38f;
      UNROLL for (int j = 0; j < Held; j++) held[r][j] = t + 256 * j < n[r] ? scores[(u64)at * (u64)pitch + (u64)(t + 256 * j)] : -3.0e38f;
    }
    UNROLL for (int r = 0; r < Rows; r++) {
      UNROLL for (int j = 0; j < Held; j++) of_row[r] = gpu_max(of_row[r], held[r][j]);
    }
    reduce_rows(of_row, scratch, Max());
    UNROLL for (int r = 0; r < Rows; r++) {
      const float maximum = of_row[r];
      of_row[r] = 0;
      UNROLL for (int j = 0; j < Held; j++) {
        held[r][j] = t + 256 * j < n[r] ? gpu_exp(held[r][j] - maximum) : 0.0f;
        of_row[r] += held[r][j];
      }
    }
    reduce_rows(of_row, scratch, Sum());
    UNROLL for (int r = 0; r < Rows; r++) {
      const float inverse = 1.0f / of_row[r];
      T* to = out + (u64)(first + r) * (u64)pitch;
      UNROLL for (int j = 0; j < Held; j++) {
        if (first + r < rows && t + 256 * j < cols) put(to + t + 256 * j, held[r][j] * inverse);
      }
    }
  }
}

// `out` may be `scores` itself; both have rows of `pitch` elements. causal: 0, or how many rows of one head follow each other.
template <class T>
DEVICE void softmax_of_rows(T* out, float* scores, int rows, int cols, int pitch, int causal, int first_valid) {
  SHARED F4 scratch4[4 * 72];
  float* scratch = (float*)scratch4;
  gpu_wait_inputs();
  if (cols <= 256) return softmax_of_short_rows<4, 1>(out, scores, rows, cols, pitch, causal, first_valid, scratch);
  if (cols <= 1024) return softmax_of_short_rows<2, 4>(out, scores, rows, cols, pitch, causal, first_valid, scratch);
  for (int r = bid_x(); r < rows; r += nbid_x()) {
    float* row = scores + (u64)r * (u64)pitch;
    T* to = out + (u64)r * (u64)pitch;
    const int n = causal ? gpu_min_i(cols, first_valid + r % causal) : cols;
    float maximum = -3.0e38f, sum = 0;
    for (int i = tid_x(); i < n; i += 256) maximum = gpu_max(maximum, row[i]);
    maximum = block_reduce<256>(maximum, scratch, Max());
    for (int i = tid_x(); i < n; i += 256) {
      const float e = gpu_exp(row[i] - maximum);
      row[i] = e;
      sum += e;
    }
    const float inverse = 1.0f / block_reduce<256>(sum, scratch, Sum());
    for (int i = tid_x(); i < cols; i += 256) put(to + i, i < n ? row[i] * inverse : 0.0f);
  }
}
KERNEL(softmax_rows, 256, float* out, float* scores, int rows, int cols, int pitch, int causal, int first_valid) {
  softmax_of_rows(out, scores, rows, cols, pitch, causal, first_valid);
}
KERNEL(softmax_rows_bf16, 256, u16* out, float* scores, int rows, int cols, int pitch, int causal, int first_valid) {
  softmax_of_rows(out, scores, rows, cols, pitch, causal, first_valid);
}

/// In steps of four: `quads` of them, head_quads a head. `twin`, where not null, gets the values as bf16 too.
KERNEL(gate_multiply, 256, float* out, u16* twin, const float* q_gate, u64 quads, int head_quads) {
  gpu_wait_inputs();
  const u64 hq = (u64)head_quads;
  for (u64 i = (u64)bid_x() * 256 + (u64)tid_x(); i < quads; i += (u64)nbid_x() * 256) {
    const F4 x = load_f4(out + 4 * i), g = load_f4(q_gate + 4 * (i / hq * (2 * hq) + hq + i % hq));
    const F4 v = F4{x.x * gpu_sigmoid(g.x), x.y * gpu_sigmoid(g.y), x.z * gpu_sigmoid(g.z), x.w * gpu_sigmoid(g.w)};
    store_f4(out + 4 * i, v);
    if (twin) store_twin(twin + 4 * i, v);
  }
}

KERNEL(rope_heads, 256, float* out, const float* x, const float* rope_cos, const float* rope_sin, u64 n, int num_heads,
       int head_dim) {
  gpu_wait_inputs();
  const int half = head_dim / 2;
  const u64 width = (u64)(num_heads * head_dim);
  for (u64 i = (u64)bid_x() * 256 + (u64)tid_x(); i < n; i += (u64)nbid_x() * 256) {
    const u64 row = i / width;
    const int d = (int)(i % width) % head_dim;
    const float other = d < half ? -x[i + (u64)half] : x[i - (u64)half];
    const u64 angle = row * (u64)half + (u64)(d < half ? d : d - half);
    out[i] = gpu_fma(other, rope_sin[angle], x[i] * rope_cos[angle]);
  }
}
