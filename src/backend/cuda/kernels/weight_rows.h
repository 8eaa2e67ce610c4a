// The body of weight_rows_<type>.cu, one module per type so that a run compiles only what its file holds. Weight rows as plain numbers: out[r][:] = W[ids ? ids[r] : first_row + r][:], to f32 (embedding lookup, sgemm operands) or
// bf16 (tensor-core operands). A thread stores four weights of a group (weight_formats.h), so that a warp's stores are
// one piece, and neighbours load the same 16 bytes; of types with scattered groups it stores a whole group. Grid (ceil(threads of a
// row / 128), min(rows, 65535)), rows beyond the grid in a stride loop. No shared memory.
#pragma once

#include "backend/cuda/kernels/bf16_twin.h"
#include "backend/cuda/kernels/weight_formats.h"

DEVICE void store4(float* p, F4 v) { store_f4(p, v); }
DEVICE void store4(u16* p, F4 v) { store_twin(p, v); }

template <class F, class Out>
DEVICE void weight_rows(Out* out, const u8* data, u64 elements, const int* ids, int first_row, int rows, int cols) {
  constexpr int kQuads = F::kScattered ? 1 : F::kGroup / 4;  // threads a group
  gpu_wait_inputs();
  const int thread = bid_x() * 128 + tid_x(), group = thread / kQuads;
  if (group >= cols / F::kGroup) return;
  for (int r = bid_y(); r < rows; r += nbid_y()) {
    const u64 row = (u64)(ids ? ids[r] : first_row + r);
    const typename F::Raw raw = F::load(WeightView{data, elements}, row * (u64)cols, group);
    Out* to = out + (u64)r * (u64)cols;
    if (F::kScattered) {
      UNROLL for (int q = 0; q < F::kGroup / 4; q++) store4(to + F::position(group, q), F::values(raw, q));
    } else {
      const int quad = thread % kQuads;
      store4(to + F::position(group, quad), F::values(raw, quad));
    }
  }
}

#define WEIGHT_ROWS(type, Format)                                                                                              \
  KERNEL(rows_##type##_f32, 128, float* out, const u8* data, u64 elements, const int* ids, int first_row, int rows, int cols) { \
    weight_rows<Format>(out, data, elements, ids, first_row, rows, cols);                                               \
  }                                                                                                                     \
  KERNEL(rows_##type##_bf16, 128, u16* out, const u8* data, u64 elements, const int* ids, int first_row, int rows, int cols) { \
    weight_rows<Format>(out, data, elements, ids, first_row, rows, cols);                                               \
  }
