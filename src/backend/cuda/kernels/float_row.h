// A row of activations as floats in shared memory, as the products of few rows read it.
#pragma once

#include "backend/cuda/kernels/gpu.h"

/// A row of k floats, swizzled: 16-byte reads of any group stride have no bank conflict.
struct FloatRow {
  F4* x;
  static constexpr bool kInt8 = false;
  DEVICE_M static int bytes(int k) { return 4 * k; }
  DEVICE_M static FloatRow at(u8* memory, int) { return FloatRow{(F4*)memory}; }
  DEVICE_M static int swizzle(int i) { return i ^ (i >> 3 & 7); }
  DEVICE_M void store(int i, F4 v, bool inside) const {
    if (inside) x[swizzle(i)] = v;
  }
  DEVICE_M F4 operator()(int i) const { return x[swizzle(i)]; }
};
