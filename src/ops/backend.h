// The op set that the forward passes are written against, as one abstract class. A backend owns device memory, packed
// weights and the ops; src/ops/reference.h is the scalar specification of each op, which every backend is tested against.
// Composite ops (gdn_mixer, attention_mixer, moe_ffn) exist so that a backend may fuse what lies between two GEMMs; their
// taps give the intermediate values that `verify` compares.
//
// Conventions for all ops:
//   - Matrices are float32, row-major, contiguous, in the backend's memory; a row is a token (or a patch).
//   - A row's result depends only on that row's inputs (and its sequence's state), never on how many rows or sequences
//     share the call, on threads, or on how a prompt was cut into calls: summation order is fixed by the shape alone.
//   - Calls are ordered as if on one stream; data is on the host only after download() (which waits).
//   - Shapes are checked by the caller when weights are bound; ops do not fail except for device errors (Error{device}).
//   - One backend object is used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace heirloom::ops {

class Backend;

/// Memory of a backend, freed with the object. `data` is a device pointer: only the backend may dereference it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Backend* owner, void* data, std::size_t bytes) : owner_(owner), data_(data), bytes_(bytes) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer();
  void* data() const { return data_; }
  float* f32() const { return static_cast<float*>(data_); }
  std::int32_t* i32() const { return static_cast<std::int32_t*>(data_); }
  std::size_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(owner_, other.owner_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  Backend* owner_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Row-major float32 matrix in backend memory (a view).
struct Matrix {
  float* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

/// A weight as a file holds it: `experts` matrices of [rows, cols] given as row slabs that follow each other (expert by
/// expert). Several tensors can be stacked into one weight this way, and one tensor cut into several, without a copy.
struct WeightData {
  struct Slab {
    const std::byte* data;  // rows of blocks, each row_bytes(type, cols) long
    std::int64_t rows;
  };
  std::string name;  // for messages
  DType type = DType::f32;
  std::int64_t experts = 1;
  std::int64_t rows = 0;  // of one expert
  std::int64_t cols = 0;
  std::vector<Slab> slabs;  // rows add up to experts * rows
};

/// A weight as the backend keeps it (packed for its kernels).
class Weight {
 public:
  virtual ~Weight() = default;
  DType type = DType::f32;
  std::int64_t experts = 1, rows = 0, cols = 0;
  std::uint64_t bytes = 0;  // read by one full use of all experts
};

struct LinearOut {
  const Weight* weight;
  float* out;                   // [x.rows, weight->rows]
  const float* bias = nullptr;  // [weight->rows] or null
};

/// Geometry of a sequence's state. GDN layers and attention layers are counted separately, in layer order.
struct StateShape {
  int num_gdn_layers = 0;
  int conv_kernel = 4;    // rows kept of the conv input, oldest first (the oldest one is not read; the reference keeps it)
  int conv_channels = 0;  // 2 * num_k_heads * head_k_dim + num_v_heads * head_v_dim
  int num_v_heads = 0, head_k_dim = 0, head_v_dim = 0;
  int num_attention_layers = 0;
  int num_kv_heads = 0, head_dim = 0;
  DType kv_type = DType::f32;               // f32, f16, bf16
  static constexpr int kPageTokens = 64;    // tokens in a KV page

  std::size_t conv_floats() const {         // [num_gdn_layers, conv_kernel, conv_channels]
    return static_cast<std::size_t>(num_gdn_layers) * static_cast<std::size_t>(conv_kernel) *
           static_cast<std::size_t>(conv_channels);
  }
  std::size_t recurrent_floats() const {    // [num_gdn_layers, num_v_heads, head_k_dim, head_v_dim]
    return static_cast<std::size_t>(num_gdn_layers) * static_cast<std::size_t>(num_v_heads) *
           static_cast<std::size_t>(head_k_dim) * static_cast<std::size_t>(head_v_dim);
  }
  /// One page holds 64 tokens of every attention layer:
  /// [num_attention_layers, 2 (K, V), num_kv_heads, kPageTokens, head_dim] of kv_type.
  std::size_t page_bytes() const {
    return static_cast<std::size_t>(num_attention_layers) * 2 * static_cast<std::size_t>(num_kv_heads) * kPageTokens *
           static_cast<std::size_t>(head_dim) * dtype_info(kv_type).block_bytes;
  }
};

/// A copy of a sequence's state after the first `rows` rows of its part of a step (0 < rows < num_rows), written by
/// gdn_mixer on the way: a long chunk leaves snapshots inside without being cut. Layouts as in SequenceStep.
struct StateCapture {
  std::int32_t rows = 0;
  float* conv = nullptr;
  float* recurrent = nullptr;
};

/// One sequence's part of a step: rows [first_row, first_row + num_rows) are its tokens past_tokens, past_tokens + 1, ...
struct SequenceStep {
  std::int32_t first_row = 0;
  std::int32_t num_rows = 0;
  std::int32_t past_tokens = 0;
  float* conv = nullptr;                    // StateShape::conv_floats(), updated in place
  float* recurrent = nullptr;               // StateShape::recurrent_floats(), updated in place
  std::span<const StateCapture> captures;   // ascending rows; empty unless Backend::captures_states()
  std::span<std::byte* const> pages;        // at least ceil((past_tokens + num_rows) / 64); written from past_tokens on
};

/// Everything about the sequences of a step. Given to begin_step; ops name layers by index and find states here.
struct StepPlan {
  StateShape shape;
  std::vector<SequenceStep> sequences;      // rows ascending, without gaps
  std::int32_t num_rows = 0;
};

struct GdnWeights {
  const float* conv;        // [conv_channels, conv_kernel] (last tap = current token)
  const float* dt_bias;     // [num_v_heads]
  const float* neg_exp_a;   // [num_v_heads], -exp(A_log)
  const float* norm;        // [head_v_dim], not zero-centred
  int num_k_heads, num_v_heads, head_k_dim, head_v_dim;
  bool v_heads_tiled;       // value head h reads key head h % num_k_heads (GGUF order) instead of h / (nv / nk) (HF order)
  float eps;
};
/// Null pointers are not written. Shapes as in the golden kit, T = rows.
struct GdnTaps {
  float* conv_out = nullptr;    // [T, conv_channels] after SiLU
  float* q_l2norm = nullptr;    // [T, num_k_heads, head_k_dim]
  float* k_l2norm = nullptr;    // [T, num_k_heads, head_k_dim]
  float* g = nullptr;           // [T, num_v_heads]
  float* beta = nullptr;        // [T, num_v_heads]
  float* core_out = nullptr;    // [T, num_v_heads, head_v_dim]
};

struct AttentionWeights {
  const float* q_norm;  // [head_dim], effective weight (1 + w already applied)
  const float* k_norm;
  int num_q_heads, num_kv_heads, head_dim, rotary_dim;
  float eps;
};
struct AttentionTaps {
  float* q_norm = nullptr;  // [T, num_q_heads, head_dim]
  float* k_norm = nullptr;  // [T, num_kv_heads, head_dim]
  float* q_rope = nullptr;
  float* k_rope = nullptr;
  float* gate = nullptr;    // [T, num_q_heads * head_dim], before the sigmoid
};

struct MoeWeights {
  const Weight* router;         // [num_experts, hidden]
  const Weight *gate, *up;      // experts x [intermediate, hidden]
  const Weight* down;           // experts x [hidden, intermediate]
  const Weight *shared_gate, *shared_up, *shared_down;
  const Weight* shared_router;  // [1, hidden]
  int top_k;
};
struct MoeTaps {
  float* router_logits = nullptr;      // [T, num_experts]
  std::int32_t* topk_indices = nullptr;  // [T, top_k], by descending probability
  float* topk_weights = nullptr;       // [T, top_k], renormalised
  float* experts = nullptr;            // [T, hidden] routed sum
  float* shared_expert = nullptr;      // [T, hidden] before its gate
  float* shared_gate_logit = nullptr;  // [T, 1]
  float* expert_out_norm = nullptr;    // [T, top_k] L2 norm of each chosen expert's output (for pruning)
};

enum class Gelu { tanh, erf };

class Backend {
 public:
  virtual ~Backend() = default;

  // ---- memory ----
  virtual void* alloc(std::size_t bytes) = 0;  // 64-byte aligned or better; Error{does_not_fit} with numbers
  virtual void free(void* data, std::size_t bytes) noexcept = 0;
  virtual void upload(void* device, const void* host, std::size_t bytes) = 0;
  virtual void download(void* host, const void* device, std::size_t bytes) = 0;  // waits for all earlier calls
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;          // device to device, no overlap
  virtual void zero(void* device, std::size_t bytes) = 0;
  virtual void synchronize() = 0;
  /// "cpu avx512_vnni, 2 threads" / "cuda:0 NVIDIA H200, sm20 kernels"
  virtual std::string description() const = 0;
  /// True if device pointers are host memory that other threads may read (the cache writes snapshots to disk from there).
  virtual bool is_host_memory() const { return false; }
  /// True if gdn_mixer honours SequenceStep::captures; otherwise the engine cuts its prefill at snapshots.
  virtual bool captures_states() const { return false; }

  Buffer make_buffer(std::size_t bytes) { return Buffer(this, bytes == 0 ? nullptr : alloc(bytes), bytes); }
  Buffer make_buffer(std::span<const float> values) {
    Buffer buffer = make_buffer(values.size_bytes());
    if (!values.empty()) upload(buffer.data(), values.data(), values.size_bytes());
    return buffer;
  }

  // ---- weights ----
  /// Packs (copies) a weight. Supported: every type that format/ can dequantise; types without a kernel of their own are
  /// converted at load, with one log line naming the type. `data` may be unmapped afterwards.
  virtual std::unique_ptr<Weight> load_weight(const WeightData& data) = 0;

  // ---- steps ----
  /// Announces the sequences of the ops that follow. `plan` stays valid until end_step. Returns true if the backend
  /// replays a recorded step of the same `key` instead (then the caller issues no ops and the outputs are where they were
  /// the last time); backends without recording return false. key 0 = never record.
  virtual bool begin_step(const StepPlan& plan, std::uint64_t key) = 0;
  virtual void end_step() = 0;
  /// Instead of end_step after an error: whatever was recorded or put off is dropped.
  virtual void abandon_step() noexcept {}

  // ---- dense ops ----
  /// out[r, :] = table[ids[r], :] (dequantised). ids: device int32 [out.rows].
  virtual void embed(const Weight& table, const std::int32_t* ids, Matrix out) = 0;
  /// out = x * rsqrt(mean(x^2) + eps) * weight, per row. `weight` [cols] is the effective one. out may alias x.
  virtual void rms_norm(Matrix x, const float* weight, float eps, Matrix out) = 0;
  /// residual += delta; out = rms_norm(residual).
  virtual void add_rms_norm(Matrix residual, Matrix delta, const float* weight, float eps, Matrix out) = 0;
  /// x += y. Nobody reads y afterwards: its values may be lost (a bias that a backend put off stays away from it).
  virtual void add(Matrix x, Matrix y) = 0;
  /// For each output i: out_i = x * weight_i^T + bias_i. All weights share x.cols.
  virtual void linear(Matrix x, std::span<const LinearOut> outs) = 0;
  /// out = silu(gate) * up. out may alias either.
  virtual void swiglu(Matrix gate, Matrix up, Matrix out) = 0;
  /// out[r, c] = table[c / plane][bytes[r, c]]: pixels as bytes to the values they stand for. bytes: device [out.rows, out.cols], channels of `plane`
  /// columns side by side; table: device f32 [out.cols / plane, 256].
  virtual void byte_values(const std::uint8_t* bytes, const float* table, std::int64_t plane, Matrix out) = 0;
  /// out[r, :] = x[rows[r], :]; rows: device int32 [out.rows].
  virtual void gather_rows(Matrix x, const std::int32_t* rows, Matrix out) = 0;
  /// out[rows[r], :] = x[r, :]; rows: device int32 [x.rows], distinct.
  virtual void scatter_rows(Matrix x, const std::int32_t* rows, Matrix out) = 0;

  // ---- hybrid layers (use the plan of begin_step) ----
  /// Gated DeltaNet between its input and output projections, for GDN layer `layer` (index among GDN layers):
  ///   causal conv + SiLU over qkv (conv state read, updated), L2 norm of q and k (x * rsqrt(sum x^2 + 1e-6)),
  ///   g = neg_exp_a * softplus(a + dt_bias), beta = sigmoid(b), per value head:
  ///   S = exp(g) S; S += k (beta (v - S^T k))^T; y = S^T q * head_k_dim^-0.5; out = rms_norm(y) * norm * silu(z).
  ///   qkv [T, conv_channels] (q heads, k heads, v heads), z and out [T, nv * head_v_dim], a, b [T, nv]. out may alias z; the inputs' values are used up.
  virtual void gdn_mixer(int layer, const GdnWeights& weights, Matrix qkv, Matrix z, Matrix a, Matrix b, Matrix out,
                         const GdnTaps* taps) = 0;
  /// Softmax attention between its projections, for attention layer `layer` (index among attention layers):
  ///   per head q and gate from q_gate [T, nh, 2, head_dim]; RMS norm of q and k; RoPE (rotate-half) on the first
  ///   rotary_dim dims with rope_cos/rope_sin [T, rotary_dim / 2]; K and V appended to the pages; causal softmax(q k /
  ///   sqrt(head_dim)) v over the sequence's whole past; out [T, nh * head_dim] = that * sigmoid(gate).
  virtual void attention_mixer(int layer, const AttentionWeights& weights, Matrix q_gate, Matrix k, Matrix v,
                               const float* rope_cos, const float* rope_sin, Matrix out, const AttentionTaps* taps) = 0;
  /// Router softmax over all experts, top-k (ties: lower index first), renormalised; routed SwiGLU experts; shared SwiGLU
  /// expert times the sigmoid of its gate. out [T, hidden] = routed + gated shared.
  virtual void moe_ffn(Matrix x, const MoeWeights& weights, Matrix out, const MoeTaps* taps) = 0;

  // ---- vision ----
  virtual void layer_norm(Matrix x, const float* weight, const float* bias, float eps, Matrix out) = 0;  // may alias
  virtual void gelu(Matrix x, Gelu kind) = 0;  // in place
  /// out[r, :] += sum_j weights[r, j] * table[rows[r, j], :]; rows, weights: device [out.rows, per_row].
  virtual void add_weighted_rows(Matrix table, const std::int32_t* rows, const float* weights, int per_row,
                                 Matrix out) = 0;
  /// Bidirectional attention inside segments. q, k, v, out [N, num_heads * head_dim]; segment s = rows
  /// [segments[s], segments[s + 1]); rope_cos/sin [N, head_dim / 2] (rotate-half over the whole head) or null.
  virtual void segment_attention(Matrix q, Matrix k, Matrix v, int num_heads, std::span<const std::int32_t> segments,
                                 const float* rope_cos, const float* rope_sin, Matrix out) = 0;

  // ---- sampling ----
  /// ids[r] = index of the largest logit of row r, the lowest one of equals. ids: device int32 [logits.rows].
  virtual void argmax(Matrix logits, std::int32_t* ids) = 0;
};

inline Buffer::~Buffer() {
  if (data_ != nullptr) owner_->free(data_, bytes_);
}

}  // namespace heirloom::ops
