// Specification of the ops that carry state or positions: Gated DeltaNet, softmax attention, vision attention.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/half.h"
#include "ops/reference.h"

namespace heirloom::ops::reference {
namespace {

float f32(double x) { return static_cast<float>(x); }

double dot(const float* a, const float* b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

void rms_norm_head(const float* x, const float* weight, int n, double eps, float* out) {
  const double scale = 1.0 / std::sqrt(dot(x, x, n) / n + eps);
  for (int i = 0; i < n; ++i) out[i] = f32(x[i] * scale * weight[i]);
}

void l2_norm_head(const float* x, int n, float* out) {
  const double scale = 1.0 / std::sqrt(dot(x, x, n) + 1e-6);
  for (int i = 0; i < n; ++i) out[i] = f32(x[i] * scale);
}

/// Rotate-half on the first 2 * half dims: pairs (i, i + half) turn by the angle of index i.
void rope_head(float* x, const float* cos, const float* sin, int half) {
  for (int i = 0; i < half; ++i) {
    const double low = x[i], high = x[i + half];
    x[i] = f32(low * cos[i] - high * sin[i]);
    x[i + half] = f32(high * cos[i] + low * sin[i]);
  }
}

/// One element of a KV page at `index` (in elements).
float load_kv(const std::byte* page, DType type, std::size_t index) {
  if (type == DType::f32) {
    float value;
    std::memcpy(&value, page + index * 4, 4);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, page + index * 2, 2);
  return type == DType::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

void store_kv(std::byte* page, DType type, std::size_t index, float value) {
  if (type == DType::f32) {
    std::memcpy(page + index * 4, &value, 4);
    return;
  }
  const std::uint16_t bits = type == DType::f16 ? f32_to_f16(value) : f32_to_bf16(value);
  std::memcpy(page + index * 2, &bits, 2);
}

/// softmax(scores) in place.
void softmax(std::vector<double>& scores) {
  const double largest = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  for (double& s : scores) total += s = std::exp(s - largest);
  for (double& s : scores) s /= total;
}

}  // namespace

void gdn_mixer(const StepPlan& plan, int layer, const GdnWeights& w, Matrix qkv, Matrix z, Matrix a, Matrix b, Matrix out,
               const GdnTaps* taps) {
  const int nk = w.num_k_heads, nv = w.num_v_heads, dk = w.head_k_dim, dv = w.head_v_dim;
  const int channels = plan.shape.conv_channels, taps_count = plan.shape.conv_kernel;
  const auto size = [](int n) { return static_cast<std::size_t>(n); };
  std::vector<float> conv_out(size(channels)), q(size(nk * dk)), k(size(nk * dk)), y(size(dv)), normed(size(dv));
  std::vector<double> delta(size(dv));

  for (const SequenceStep& sequence : plan.sequences) {
    float* conv_state = sequence.conv + static_cast<std::ptrdiff_t>(layer) * taps_count * channels;
    float* states = sequence.recurrent + static_cast<std::ptrdiff_t>(layer) * nv * dk * dv;
    for (std::int64_t t = sequence.first_row; t < sequence.first_row + sequence.num_rows; ++t) {
      // The window slides by one token: oldest row first, this token last.
      std::memmove(conv_state, conv_state + channels, size(taps_count - 1) * size(channels) * sizeof(float));
      std::copy_n(qkv.data + t * channels, channels, conv_state + (taps_count - 1) * channels);
      for (int c = 0; c < channels; ++c) {
        double sum = 0;
        for (int j = 0; j < taps_count; ++j) sum += static_cast<double>(w.conv[c * taps_count + j]) * conv_state[j * channels + c];
        conv_out[size(c)] = f32(silu(sum));
      }
      for (int h = 0; h < nk; ++h) {
        l2_norm_head(conv_out.data() + h * dk, dk, q.data() + h * dk);
        l2_norm_head(conv_out.data() + (nk + h) * dk, dk, k.data() + h * dk);
      }
      if (taps != nullptr && taps->conv_out != nullptr) std::copy_n(conv_out.data(), channels, taps->conv_out + t * channels);
      if (taps != nullptr && taps->q_l2norm != nullptr) std::copy_n(q.data(), nk * dk, taps->q_l2norm + t * nk * dk);
      if (taps != nullptr && taps->k_l2norm != nullptr) std::copy_n(k.data(), nk * dk, taps->k_l2norm + t * nk * dk);

      for (int h = 0; h < nv; ++h) {
        const int key_head = w.v_heads_tiled ? h % nk : h / (nv / nk);
        const float* qh = q.data() + key_head * dk;
        const float* kh = k.data() + key_head * dk;
        const float* vh = conv_out.data() + 2 * nk * dk + h * dv;
        float* state = states + static_cast<std::ptrdiff_t>(h) * dk * dv;
        const float g = f32(w.neg_exp_a[h] * softplus(static_cast<double>(a.data[t * nv + h]) + w.dt_bias[h]));
        const float beta = f32(sigmoid(b.data[t * nv + h]));
        const double decay = std::exp(static_cast<double>(g));
        if (taps != nullptr && taps->g != nullptr) taps->g[t * nv + h] = g;
        if (taps != nullptr && taps->beta != nullptr) taps->beta[t * nv + h] = beta;

        for (int j = 0; j < dv; ++j) {
          double predicted = 0;
          for (int i = 0; i < dk; ++i) predicted += decay * state[i * dv + j] * kh[i];
          delta[size(j)] = beta * (vh[j] - predicted);
        }
        for (int j = 0; j < dv; ++j) {
          double sum = 0;
          for (int i = 0; i < dk; ++i) {
            state[i * dv + j] = f32(decay * state[i * dv + j] + kh[i] * delta[size(j)]);
            sum += static_cast<double>(state[i * dv + j]) * qh[i];
          }
          y[size(j)] = f32(sum / std::sqrt(static_cast<double>(dk)));
        }
        if (taps != nullptr && taps->core_out != nullptr) std::copy_n(y.data(), dv, taps->core_out + (t * nv + h) * dv);
        rms_norm_head(y.data(), w.norm, dv, w.eps, normed.data());
        for (int j = 0; j < dv; ++j) {
          const std::int64_t at = (t * nv + h) * dv + j;
          out.data[at] = f32(normed[size(j)] * silu(z.data[at]));
        }
      }
      for (const StateCapture& capture : sequence.captures) {
        if (capture.rows != t - sequence.first_row + 1) continue;
        std::copy_n(conv_state, taps_count * channels, capture.conv + (conv_state - sequence.conv));
        std::copy_n(states, nv * dk * dv, capture.recurrent + (states - sequence.recurrent));
      }
    }
  }
}

void attention_mixer(const StepPlan& plan, int layer, const AttentionWeights& w, Matrix q_gate, Matrix k, Matrix v,
                     const float* rope_cos, const float* rope_sin, Matrix out, const AttentionTaps* taps) {
  const int nh = w.num_q_heads, nkv = w.num_kv_heads, d = w.head_dim, half = w.rotary_dim / 2;
  const DType type = plan.shape.kv_type;
  const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  // Index of dim 0 of a token's key (which = 0) or value (which = 1) inside its page.
  const auto page_index = [&](int which, int head, int token) {
    return size((((static_cast<std::int64_t>(layer) * 2 + which) * nkv + head) * StateShape::kPageTokens +
                 token % StateShape::kPageTokens) * d);
  };
  std::vector<float> q(size(d)), key(size(d));
  for (const SequenceStep& sequence : plan.sequences) {
    for (int i = 0; i < sequence.num_rows; ++i) {
      const std::int64_t t = sequence.first_row + i;
      const int position = sequence.past_tokens + i;
      std::byte* page = sequence.pages[size(position / StateShape::kPageTokens)];
      for (int h = 0; h < nkv; ++h) {
        rms_norm_head(k.data + (t * nkv + h) * d, w.k_norm, d, w.eps, key.data());
        if (taps != nullptr && taps->k_norm != nullptr) std::copy_n(key.data(), d, taps->k_norm + (t * nkv + h) * d);
        rope_head(key.data(), rope_cos + t * half, rope_sin + t * half, half);
        if (taps != nullptr && taps->k_rope != nullptr) std::copy_n(key.data(), d, taps->k_rope + (t * nkv + h) * d);
        for (int j = 0; j < d; ++j) {
          store_kv(page, type, page_index(0, h, position) + size(j), key[size(j)]);
          store_kv(page, type, page_index(1, h, position) + size(j), v.data[(t * nkv + h) * d + j]);
        }
      }
      for (int h = 0; h < nh; ++h) {
        const float* head = q_gate.data + (t * nh + h) * 2 * d;
        const float* gate = head + d;
        rms_norm_head(head, w.q_norm, d, w.eps, q.data());
        if (taps != nullptr && taps->q_norm != nullptr) std::copy_n(q.data(), d, taps->q_norm + (t * nh + h) * d);
        rope_head(q.data(), rope_cos + t * half, rope_sin + t * half, half);
        if (taps != nullptr && taps->q_rope != nullptr) std::copy_n(q.data(), d, taps->q_rope + (t * nh + h) * d);
        if (taps != nullptr && taps->gate != nullptr) std::copy_n(gate, d, taps->gate + (t * nh + h) * d);

        const int kv_head = h / (nh / nkv);
        std::vector<double> scores(size(position + 1));
        for (int s = 0; s <= position; ++s) {
          const std::byte* from = sequence.pages[size(s / StateShape::kPageTokens)];
          double sum = 0;
          for (int j = 0; j < d; ++j) {
            sum += static_cast<double>(q[size(j)]) * load_kv(from, type, page_index(0, kv_head, s) + size(j));
          }
          scores[size(s)] = sum / std::sqrt(static_cast<double>(d));
        }
        softmax(scores);
        for (int j = 0; j < d; ++j) {
          double sum = 0;
          for (int s = 0; s <= position; ++s) {
            const std::byte* from = sequence.pages[size(s / StateShape::kPageTokens)];
            sum += scores[size(s)] * load_kv(from, type, page_index(1, kv_head, s) + size(j));
          }
          out.data[(t * nh + h) * d + j] = f32(sum * sigmoid(gate[j]));
        }
      }
    }
  }
}

void segment_attention(Matrix q, Matrix k, Matrix v, int num_heads, std::span<const std::int32_t> segments,
                       const float* rope_cos, const float* rope_sin, Matrix out) {
  const auto d = static_cast<int>(q.cols / num_heads);
  const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  const auto turned = [&](Matrix m) {
    std::vector<float> copy(m.data, m.data + m.rows * m.cols);
    if (rope_cos == nullptr) return copy;
    for (std::int64_t r = 0; r < m.rows; ++r) {
      for (int h = 0; h < num_heads; ++h) {
        rope_head(copy.data() + r * m.cols + h * d, rope_cos + r * (d / 2), rope_sin + r * (d / 2), d / 2);
      }
    }
    return copy;
  };
  const std::vector<float> queries = turned(q), keys = turned(k);
  for (std::size_t s = 0; s + 1 < segments.size(); ++s) {
    const std::int64_t begin = segments[s], end = segments[s + 1];
    for (int h = 0; h < num_heads; ++h) {
      for (std::int64_t r = begin; r < end; ++r) {
        std::vector<double> scores;
        for (std::int64_t c = begin; c < end; ++c) {
          scores.push_back(dot(queries.data() + r * q.cols + h * d, keys.data() + c * k.cols + h * d, d) /
                           std::sqrt(static_cast<double>(d)));
        }
        softmax(scores);
        for (int j = 0; j < d; ++j) {
          double sum = 0;
          for (std::int64_t c = begin; c < end; ++c) sum += scores[size(c - begin)] * v.data[c * v.cols + h * d + j];
          out.data[r * out.cols + h * d + j] = f32(sum);
        }
      }
    }
  }
}

}  // namespace heirloom::ops::reference
