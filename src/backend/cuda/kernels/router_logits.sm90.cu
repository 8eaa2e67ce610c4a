// Logits of the router and of the shared expert's gate for one token, from the residual stream: a row of weights a block, in registers
// (times the norm's weight) before the inputs are there; one barrier for the product and the RMS scale together.
#include "backend/cuda/kernels/token_input.h"

KERNEL(router_logits, kRouterThreads, const RouterArgs p) {
  constexpr int kQuads = kTokenMaxK / 4 / kRouterThreads, kWarps = kRouterThreads / 32;
  SHARED float products[kWarps], squares[kWarps];
  const int t = tid_x(), quads = p.k / 4, expert = bid_x();
  const float* weights = expert < p.experts ? p.router + (u64)(u32)expert * (u64)(u32)p.k : p.shared;
  F4 row[kQuads], x[kQuads];
  UNROLL for (int j = 0; j < kQuads; j++) {
    const int i = gpu_min_i(t + j * kRouterThreads, quads - 1);
    if (j * kRouterThreads < quads) row[j] = quad_product(((const F4*)weights)[i], ((const F4*)p.norm_weight)[i]);
  }
  gpu_wait_inputs();
  gpu_let_next_start();  // after the wait: the next kernel reads the residual stream before its own
  UNROLL for (int j = 0; j < kQuads; j++) {
    if (j * kRouterThreads < quads) x[j] = ((const F4*)p.x)[gpu_min_i(t + j * kRouterThreads, quads - 1)];
  }
  float product = 0, square = 0;
  UNROLL for (int j = 0; j < kQuads; j++) {
    if (t + j * kRouterThreads >= quads) continue;
    product = quad_dot(x[j], row[j], product);
    square = quad_dot(x[j], x[j], square);
  }
  product = warp_total(product);
  square = warp_total(square);
  if ((t & 31) == 0) {
    products[t >> 5] = product;
    squares[t >> 5] = square;
  }
  gpu_sync();
  if (t != 0) return;
  float sum = products[0];
  UNROLL for (int i = 1; i < kWarps; i++) sum += products[i];
  p.logits[expert] = sum * token_scale(squares, kWarps, p.inverse_k, p.eps);
}
