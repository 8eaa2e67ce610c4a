#include "backend/cuda/cuda_weight.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/block_layouts.h"
#include "base/check.h"
#include "base/half.h"

namespace heirloom::cuda {
namespace {

using u64 = unsigned long long;

struct Format {
  DType type;
  const char* name;
  int group;
  bool scattered = false;
};
constexpr Format kFormats[] = {
    {DType::f32, "f32", 4},    {DType::f16, "f16", 8},    {DType::bf16, "bf16", 8},  {DType::q8_0, "q8_0", 16},
    {DType::q4_0, "q4_0", 32}, {DType::q4_k, "q4_k", 32, true}, {DType::q5_k, "q5_k", 32, true}, {DType::q6_k, "q6_k", 32, true},
};

const Format* format_of(DType type) {
  for (const Format& format : kFormats) {
    if (format.type == type) return &format;
  }
  return nullptr;
}

const char* repack_kernel(DType type) {
  if (type == DType::q8_0) return "repack_q8_0";
  if (type == DType::q4_0) return "repack_q4_0";
  return type == DType::q6_k ? "repack_q6_k" : nullptr;
}

float scaled(Half d, int value) { return load_f16(d) * static_cast<float>(value); }

// Types without kernels of their own, one block to floats; layouts in base/block_layouts.h.
int nibble(const std::uint8_t* qs, int i) { return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4; }
int fifth_bit(const std::uint8_t* qh, int i) { return (qh[i / 8] >> (i % 8) & 1) << 4; }

void decode(const BlockQ4_0& b, float* out) {
  for (int i = 0; i < 32; ++i) out[i] = scaled(b.d, nibble(b.qs, i) - 8);
}
void decode(const BlockQ4_1& b, float* out) {
  for (int i = 0; i < 32; ++i) out[i] = scaled(b.d, nibble(b.qs, i)) + load_f16(b.m);
}
void decode(const BlockQ5_0& b, float* out) {
  for (int i = 0; i < 32; ++i) out[i] = scaled(b.d, (nibble(b.qs, i) | fifth_bit(b.qh, i)) - 16);
}
void decode(const BlockQ5_1& b, float* out) {
  for (int i = 0; i < 32; ++i) out[i] = scaled(b.d, nibble(b.qs, i) | fifth_bit(b.qh, i)) + load_f16(b.m);
}
void decode(const BlockQ8_0& b, float* out) {
  for (int i = 0; i < 32; ++i) out[i] = scaled(b.d, b.qs[i]);
}
void decode(const BlockIQ4_NL& b, float* out) {
  for (int i = 0; i < 32; ++i) out[i] = scaled(b.d, kIq4Values[nibble(b.qs, i)]);
}
void decode(const BlockMXFP4& b, float* out) {
  for (int i = 0; i < 32; ++i) out[i] = mxfp4_scale(b.e) * static_cast<float>(kMxfp4Values[nibble(b.qs, i)]);
}
void decode(const BlockQ2_K& b, float* out) {
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, s = i % 128 / 32, l = i % 32, group = i / 16;
    const int q = b.qs[32 * half + l] >> (2 * s) & 3;
    out[i] = scaled(b.d, b.scales[group] & 15) * static_cast<float>(q) - scaled(b.dmin, b.scales[group] >> 4);
  }
}
void decode(const BlockQ3_K& b, float* out) {
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, s = i % 128 / 32, l = i % 32, group = i / 16;
    const int low = group < 8 ? b.scales[group] & 15 : b.scales[group - 8] >> 4;
    const int scale = low | (b.scales[8 + group % 4] >> (2 * (group / 4)) & 3) << 4;
    const int q = (b.qs[32 * half + l] >> (2 * s) & 3) - (b.hmask[l] >> (i / 32) & 1 ? 0 : 4);
    out[i] = scaled(b.d, scale - 32) * static_cast<float>(q);
  }
}
void decode(const BlockIQ4_XS& b, float* out) {
  const unsigned high = b.scales_h[0] | static_cast<unsigned>(b.scales_h[1]) << 8;
  for (int i = 0; i < 256; ++i) {
    const int group = i / 32, low = b.scales_l[group / 2] >> (4 * (group % 2)) & 15;
    const int scale = low | static_cast<int>(high >> (2 * group) & 3) << 4;
    out[i] = scaled(b.d, scale - 32) * static_cast<float>(kIq4Values[nibble(b.qs + 16 * group, i % 32)]);
  }
}

template <class Block>
void decode_as(const std::byte* from, float* out) {
  decode(*reinterpret_cast<const Block*>(from), out);  // blocks have alignment 1
}

void decode_block(DType type, const std::byte* from, float* out) {
  std::uint16_t half = 0;
  switch (type) {
    case DType::f32: std::memcpy(out, from, 4); return;
    case DType::f16:
    case DType::bf16:
      std::memcpy(&half, from, 2);
      *out = type == DType::f16 ? f16_to_f32(half) : bf16_to_f32(half);
      return;
    case DType::q4_0: return decode_as<BlockQ4_0>(from, out);
    case DType::q4_1: return decode_as<BlockQ4_1>(from, out);
    case DType::q5_0: return decode_as<BlockQ5_0>(from, out);
    case DType::q5_1: return decode_as<BlockQ5_1>(from, out);
    case DType::q8_0: return decode_as<BlockQ8_0>(from, out);
    case DType::iq4_nl: return decode_as<BlockIQ4_NL>(from, out);
    case DType::mxfp4: return decode_as<BlockMXFP4>(from, out);
    case DType::q2_k: return decode_as<BlockQ2_K>(from, out);
    case DType::q3_k: return decode_as<BlockQ3_K>(from, out);
    case DType::iq4_xs: return decode_as<BlockIQ4_XS>(from, out);
    default: fail(ErrorKind::bad_file, "a weight of type {} cannot be used on the GPU", dtype_name(type));
  }
}

void store_q8_block(std::byte* to, std::uint16_t scale, const int* quants) {
  std::memcpy(to, &scale, 2);
  for (int i = 0; i < 32; ++i) to[2 + i] = static_cast<std::byte>(static_cast<signed char>(quants[i]));
}

}  // namespace

bool has_kernels(DType type, std::int64_t cols) {
  const Format* format = format_of(type);
  return format != nullptr && cols % format->group == 0;
}

DType converted_type(DType type, std::int64_t cols) {
  return (type == DType::q5_0 || type == DType::iq4_nl) && cols % 32 == 0 ? DType::q8_0 : DType::f32;
}

void convert_values(DType type, const std::byte* from, std::int64_t count, DType to_type, std::byte* to) {
  const DTypeInfo& info = dtype_info(type);
  if (to_type == DType::q8_0) {
    for (std::int64_t block = 0; block < count / 32; ++block) {
      int quants[32];
      std::uint16_t scale = 0;
      const std::byte* at = from + block * info.block_bytes;
      if (type == DType::q5_0) {
        const auto& b = *reinterpret_cast<const BlockQ5_0*>(at);
        scale = half_bits(b.d);
        for (int i = 0; i < 32; ++i) {
          quants[i] = (nibble(b.qs, i) | fifth_bit(b.qh, i)) - 16;
        }
      } else {
        const auto& b = *reinterpret_cast<const BlockIQ4_NL*>(at);
        scale = half_bits(b.d);
        for (int i = 0; i < 32; ++i) quants[i] = kIq4Values[nibble(b.qs, i)];
      }
      store_q8_block(to + block * 34, scale, quants);
    }
    return;
  }
  auto* out = reinterpret_cast<float*>(to);
  for (std::int64_t block = 0; block < count / info.block_size; ++block) {
    decode_block(type, from + block * info.block_bytes, out + block * info.block_size);
  }
}

std::unique_ptr<CudaWeight> upload_weight(Device& device, const ops::WeightData& data, void* staging,
                                          std::size_t staging_bytes) {
  auto weight = std::make_unique<CudaWeight>(device);
  const bool direct = has_kernels(data.type, data.cols);
  weight->type = direct ? data.type : converted_type(data.type, data.cols);
  const Format* format = format_of(weight->type);
  if (data.cols % format->group != 0) {
    fail(ErrorKind::bad_file, "{}: rows of {} values; the GPU kernels need a multiple of {}", data.name, data.cols,
         format->group);
  }
  weight->experts = data.experts;
  weight->rows = data.rows;
  weight->cols = data.cols;
  weight->elements = static_cast<std::uint64_t>(data.experts * data.rows * data.cols);
  weight->format = format->name;
  weight->group = format->group;
  weight->scattered = format->scattered;
  const std::uint64_t row = row_bytes(weight->type, static_cast<std::uint64_t>(data.cols));
  weight->bytes = row * static_cast<std::uint64_t>(data.experts * data.rows);
  weight->data = device.alloc(weight->bytes, data.name);

  const std::uint64_t file_row = row_bytes(data.type, static_cast<std::uint64_t>(data.cols));
  const DTypeInfo& info = dtype_info(weight->type);
  const std::uint64_t blocks_in_row = static_cast<std::uint64_t>(data.cols) / info.block_size;
  const u64 blocks = static_cast<u64>(data.experts * data.rows) * blocks_in_row;
  const char* repack = repack_kernel(weight->type);
  const auto rows_at_once = static_cast<std::int64_t>(std::max<std::uint64_t>(1, staging_bytes / row));
  if (row > staging_bytes) fail(ErrorKind::does_not_fit, "{}: a row of {} bytes is longer than the upload buffer", data.name, row);
  std::vector<std::byte> converted;
  std::int64_t done = 0;
  for (const ops::WeightData::Slab& slab : data.slabs) {
    for (std::int64_t r = 0; r < slab.rows;) {
      const std::int64_t n = std::min(rows_at_once, slab.rows - r);
      const std::byte* from = slab.data + static_cast<std::uint64_t>(r) * file_row;
      const auto bytes = static_cast<std::uint64_t>(n) * row;
      if (!direct) {
        converted.resize(bytes);
        convert_values(data.type, from, n * data.cols, weight->type, converted.data());
        from = converted.data();
      }
      if (repack) {
        device.copy_in(staging, from, bytes, Lane::compute);
        const u64 first = static_cast<u64>(done) * blocks_in_row, count = static_cast<u64>(n) * blocks_in_row;
        const u64 grid = std::min<u64>(65535, (count * (info.block_bytes / 2) + 255) / 256);
        device.launch(repack, {static_cast<unsigned>(grid)}, {256}, 0, static_cast<unsigned short*>(weight->data),
                      static_cast<const unsigned short*>(staging), blocks, first, count);
      } else {
        device.copy_in(static_cast<std::byte*>(weight->data) + static_cast<std::uint64_t>(done) * row, from, bytes,
                       Lane::compute);
      }
      r += n;
      done += n;
    }
  }
  // `data` may be unmapped when we return; copies from pageable memory have been staged by then, registered memory has not.
  device.synchronize(Lane::compute);
  return weight;
}

}  // namespace heirloom::cuda
