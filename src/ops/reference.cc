#include "ops/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

namespace heirloom::ops::reference {
namespace {

float* row(Matrix m, std::int64_t r) { return m.data + r * m.cols; }
float f32(double x) { return static_cast<float>(x); }

/// 1 / sqrt(mean(x^2) + eps)
double inverse_rms(const float* x, std::int64_t n, double eps) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return 1.0 / std::sqrt(sum / static_cast<double>(n) + eps);
}

}  // namespace

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(x); }
double softplus(double x) { return x > 20.0 ? x : std::log1p(std::exp(x)); }

double gelu(double x, Gelu kind) {
  if (kind == Gelu::erf) return 0.5 * x * (1.0 + std::erf(x / std::numbers::sqrt2));
  const double inner = std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1.0 + std::tanh(inner));
}

void rms_norm(Matrix x, const float* weight, float eps, Matrix out) {
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const double scale = inverse_rms(row(x, r), x.cols, eps);
    for (std::int64_t i = 0; i < x.cols; ++i) row(out, r)[i] = f32(row(x, r)[i] * scale * weight[i]);
  }
}

void add_rms_norm(Matrix residual, Matrix delta, const float* weight, float eps, Matrix out) {
  add(residual, delta);
  rms_norm(residual, weight, eps, out);
}

void layer_norm(Matrix x, const float* weight, const float* bias, float eps, Matrix out) {
  const auto n = static_cast<double>(x.cols);
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const float* in = row(x, r);
    double mean = 0, variance = 0;
    for (std::int64_t i = 0; i < x.cols; ++i) mean += in[i];
    mean /= n;
    for (std::int64_t i = 0; i < x.cols; ++i) variance += (in[i] - mean) * (in[i] - mean);
    const double scale = 1.0 / std::sqrt(variance / n + eps);
    for (std::int64_t i = 0; i < x.cols; ++i) row(out, r)[i] = f32((in[i] - mean) * scale * weight[i] + bias[i]);
  }
}

void add(Matrix x, Matrix y) {
  for (std::int64_t i = 0; i < x.rows * x.cols; ++i) x.data[i] += y.data[i];
}

void swiglu(Matrix gate, Matrix up, Matrix out) {
  for (std::int64_t i = 0; i < gate.rows * gate.cols; ++i) out.data[i] = f32(silu(gate.data[i]) * up.data[i]);
}

void gelu(Matrix x, Gelu kind) {
  for (std::int64_t i = 0; i < x.rows * x.cols; ++i) x.data[i] = f32(gelu(static_cast<double>(x.data[i]), kind));
}

void byte_values(const std::uint8_t* bytes, const float* table, std::int64_t plane, Matrix out) {
  for (std::int64_t i = 0; i < out.rows * out.cols; ++i) out.data[i] = table[i % out.cols / plane * 256 + bytes[i]];
}

void gather_rows(Matrix x, const std::int32_t* rows, Matrix out) {
  for (std::int64_t r = 0; r < out.rows; ++r) std::copy_n(row(x, rows[r]), x.cols, row(out, r));
}

void scatter_rows(Matrix x, const std::int32_t* rows, Matrix out) {
  for (std::int64_t r = 0; r < x.rows; ++r) std::copy_n(row(x, r), x.cols, row(out, rows[r]));
}

void add_weighted_rows(Matrix table, const std::int32_t* rows, const float* weights, int per_row, Matrix out) {
  for (std::int64_t r = 0; r < out.rows; ++r) {
    for (std::int64_t i = 0; i < out.cols; ++i) {
      double sum = 0;
      for (int j = 0; j < per_row; ++j) {
        sum += static_cast<double>(weights[r * per_row + j]) * row(table, rows[r * per_row + j])[i];
      }
      row(out, r)[i] = f32(row(out, r)[i] + sum);
    }
  }
}

void argmax(Matrix logits, std::int32_t* ids) {
  for (std::int64_t r = 0; r < logits.rows; ++r) {
    const float* x = row(logits, r);
    ids[r] = static_cast<std::int32_t>(std::max_element(x, x + logits.cols) - x);  // the first of equals
  }
}

void linear(Matrix x, const float* weight, const float* bias, Matrix out) {
  for (std::int64_t r = 0; r < x.rows; ++r) {
    for (std::int64_t o = 0; o < out.cols; ++o) {
      double sum = bias != nullptr ? bias[o] : 0.0;
      for (std::int64_t i = 0; i < x.cols; ++i) sum += static_cast<double>(row(x, r)[i]) * weight[o * x.cols + i];
      row(out, r)[o] = f32(sum);
    }
  }
}

void moe_ffn(Matrix x, const MoeMatrices& w, Matrix out, const MoeTaps* taps) {
  const std::int64_t hidden = x.cols;
  const auto swiglu_ffn = [&](Matrix in, const float* gate, const float* up, const float* down, int intermediate) {
    std::vector<float> g(static_cast<std::size_t>(intermediate)), u(g), y(static_cast<std::size_t>(hidden));
    linear(in, gate, nullptr, {g.data(), 1, intermediate});
    linear(in, up, nullptr, {u.data(), 1, intermediate});
    swiglu({g.data(), 1, intermediate}, {u.data(), 1, intermediate}, {g.data(), 1, intermediate});
    linear({g.data(), 1, intermediate}, down, nullptr, {y.data(), 1, hidden});
    return y;
  };
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const Matrix in{row(x, r), 1, hidden};
    const auto experts = static_cast<std::size_t>(w.num_experts);
    const auto top_k = static_cast<std::size_t>(w.top_k);
    std::vector<float> logits(experts);
    linear(in, w.router, nullptr, {logits.data(), 1, w.num_experts});

    // The softmax's denominator cancels in the renormalised weights.
    std::vector<std::int32_t> order(experts);
    for (std::size_t e = 0; e < experts; ++e) order[e] = static_cast<std::int32_t>(e);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t i, std::int32_t j) {
      return logits[static_cast<std::size_t>(i)] > logits[static_cast<std::size_t>(j)];
    });
    std::vector<double> probability(top_k);
    double total = 0;
    for (std::size_t j = 0; j < top_k; ++j) {
      probability[j] = std::exp(static_cast<double>(logits[static_cast<std::size_t>(order[j])]) -
                                logits[static_cast<std::size_t>(order[0])]);
      total += probability[j];
    }

    std::vector<double> routed(static_cast<std::size_t>(hidden), 0.0);
    for (std::size_t j = 0; j < top_k; ++j) {
      const std::int64_t offset = order[j] * static_cast<std::int64_t>(w.intermediate) * hidden;
      const std::vector<float> y = swiglu_ffn(in, w.gate + offset, w.up + offset, w.down + offset, w.intermediate);
      double square = 0;
      for (std::size_t i = 0; i < y.size(); ++i) {
        routed[i] += probability[j] / total * y[i];
        square += static_cast<double>(y[i]) * y[i];
      }
      if (taps == nullptr) continue;
      const std::int64_t slot = r * w.top_k + static_cast<std::int64_t>(j);
      if (taps->topk_indices != nullptr) taps->topk_indices[slot] = order[j];
      if (taps->topk_weights != nullptr) taps->topk_weights[slot] = f32(probability[j] / total);
      if (taps->expert_out_norm != nullptr) taps->expert_out_norm[slot] = f32(std::sqrt(square));
    }
    const std::vector<float> shared = swiglu_ffn(in, w.shared_gate, w.shared_up, w.shared_down, w.shared_intermediate);
    float gate_logit = 0;
    linear(in, w.shared_router, nullptr, {&gate_logit, 1, 1});
    for (std::size_t i = 0; i < routed.size(); ++i) row(out, r)[i] = f32(routed[i] + sigmoid(gate_logit) * shared[i]);

    if (taps == nullptr) continue;
    if (taps->router_logits != nullptr) std::copy_n(logits.data(), w.num_experts, taps->router_logits + r * w.num_experts);
    if (taps->experts != nullptr) {
      for (std::size_t i = 0; i < routed.size(); ++i) taps->experts[static_cast<std::size_t>(r * hidden) + i] = f32(routed[i]);
    }
    if (taps->shared_expert != nullptr) std::copy_n(shared.data(), hidden, taps->shared_expert + r * hidden);
    if (taps->shared_gate_logit != nullptr) taps->shared_gate_logit[r] = gate_logit;
  }
}

}  // namespace heirloom::ops::reference
