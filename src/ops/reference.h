// The scalar specification of every op of backend.h: plain loops, one function an op, no thread, no vector, no blocking.
// Every kernel of every backend is tested against it. Data is float32 as the ops store it; sums, products and transcendental
// functions are taken in double, so that the reference's own rounding is far below the tolerance of a float kernel and any
// order of summation may be held to it. The recurrent state and the KV cache are rounded to their stored type after each
// token, as the ops do: that rounding is part of what is specified.
#pragma once

#include <cstdint>
#include <span>

#include "ops/backend.h"

namespace heirloom::ops::reference {

double sigmoid(double x);
double silu(double x);      // x * sigmoid(x)
double softplus(double x);  // log(1 + exp(x)), linear above 20 as torch has it
double gelu(double x, Gelu kind);

void rms_norm(Matrix x, const float* weight, float eps, Matrix out);
void add_rms_norm(Matrix residual, Matrix delta, const float* weight, float eps, Matrix out);
void layer_norm(Matrix x, const float* weight, const float* bias, float eps, Matrix out);
void add(Matrix x, Matrix y);
void swiglu(Matrix gate, Matrix up, Matrix out);
void gelu(Matrix x, Gelu kind);
void byte_values(const std::uint8_t* bytes, const float* table, std::int64_t plane, Matrix out);
void gather_rows(Matrix x, const std::int32_t* rows, Matrix out);
void scatter_rows(Matrix x, const std::int32_t* rows, Matrix out);
void add_weighted_rows(Matrix table, const std::int32_t* rows, const float* weights, int per_row, Matrix out);
void argmax(Matrix logits, std::int32_t* ids);

/// out = x * weight^T + bias; weight [out.cols, x.cols] as plain floats; bias null or [out.cols].
void linear(Matrix x, const float* weight, const float* bias, Matrix out);

void gdn_mixer(const StepPlan& plan, int layer, const GdnWeights& weights, Matrix qkv, Matrix z, Matrix a, Matrix b,
               Matrix out, const GdnTaps* taps);

void attention_mixer(const StepPlan& plan, int layer, const AttentionWeights& weights, Matrix q_gate, Matrix k, Matrix v,
                     const float* rope_cos, const float* rope_sin, Matrix out, const AttentionTaps* taps);

/// The weights of moe_ffn as plain floats, shapes as in ops::MoeWeights.
struct MoeMatrices {
  const float* router;              // [num_experts, hidden]
  const float *gate, *up;           // [num_experts, intermediate, hidden]
  const float* down;                // [num_experts, hidden, intermediate]
  const float *shared_gate, *shared_up;  // [shared_intermediate, hidden]
  const float* shared_down;         // [hidden, shared_intermediate]
  const float* shared_router;       // [hidden]
  int num_experts, intermediate, shared_intermediate, top_k;
};
void moe_ffn(Matrix x, const MoeMatrices& weights, Matrix out, const MoeTaps* taps);

void segment_attention(Matrix q, Matrix k, Matrix v, int num_heads, std::span<const std::int32_t> segments,
                       const float* rope_cos, const float* rope_sin, Matrix out);

}  // namespace heirloom::ops::reference
