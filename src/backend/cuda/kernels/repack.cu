// GGUF blocks -> the planes of weight_formats.h, on the device: weights (and streamed experts) travel as the file has them. One
// thread two bytes, because the blocks are only 2-byte aligned; grid (min(ceil(units / 256), 65535)), stride loop. Bound by
// memory. A call takes `count` blocks, the first of which is block `first` of the `blocks` that the whole weight has.
#include "backend/cuda/kernels/gpu.h"

// q8_0: 17 half-words a block (scale, 16 of quants); q4_0: 9 (scale, 8 of nibbles).
template <int Units>
DEVICE void split_scale_and_quants(u16* out, const u16* in, u64 blocks, u64 first, u64 count) {
  u16* scales = out + blocks * (Units - 1);
  const u64 total = count * Units, stride = (u64)nbid_x() * 256;
  for (u64 i = (u64)bid_x() * 256 + (u64)tid_x(); i < total; i += stride) {
    const u64 block = i / Units;
    const int unit = (int)(i - block * Units);
    if (unit == 0) scales[first + block] = in[i];
    else out[(first + block) * (Units - 1) + (u64)(unit - 1)] = in[i];
  }
}
KERNEL(repack_q8_0, 256, u16* out, const u16* in, u64 blocks, u64 first, u64 count) {
  split_scale_and_quants<17>(out, in, blocks, first, count);
}
KERNEL(repack_q4_0, 256, u16* out, const u16* in, u64 blocks, u64 first, u64 count) {
  split_scale_and_quants<9>(out, in, blocks, first, count);
}

// q6_k: 105 half-words a block: 64 low nibbles, 32 high bits, 8 scales, 1 f16.
KERNEL(repack_q6_k, 256, u16* out, const u16* in, u64 blocks, u64 first, u64 count) {
  const u64 total = count * 105, stride = (u64)nbid_x() * 256;
  for (u64 i = (u64)bid_x() * 256 + (u64)tid_x(); i < total; i += stride) {
    const u64 in_call = i / 105, block = first + in_call;
    const int unit = (int)(i - in_call * 105);
    u64 to;
    if (unit < 64) to = block * 64 + (u64)unit;
    else if (unit < 96) to = blocks * 64 + block * 32 + (u64)(unit - 64);
    else if (unit < 104) to = blocks * 96 + block * 8 + (u64)(unit - 96);
    else to = blocks * 104 + block;
    out[to] = in[i];
  }
}
