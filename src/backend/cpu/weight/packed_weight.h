// Weights in the packed layout (packed_layout.h): loading, and reading back single rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "backend/cpu/weight/packed_layout.h"
#include "backend/cpu/weight/page_buffer.h"
#include "base/cpu_features.h"
#include "base/thread_pool.h"
#include "ops/backend.h"

namespace heirloom::cpu {

class PackedWeight final : public ops::Weight {
 public:
  PackedType packed_type = PackedType::f32;
  std::int64_t panels = 0;        // of one expert: ceil(rows / 16)
  std::uint64_t panel_bytes = 0;  // of one panel

  /// All panels: experts * panels * panel_bytes.
  const std::byte* data() const { return buffer_.data(); }
  const std::byte* panel(std::int64_t expert, std::int64_t index) const {
    return buffer_.data() + static_cast<std::uint64_t>(expert * panels + index) * panel_bytes;
  }

 private:
  friend std::unique_ptr<ops::Weight> pack_weight(const ops::WeightData& data, ThreadPool& pool, CpuTier tier, bool interleaved);
  PageBuffer buffer_;
};

/// Packs a weight into memory of its own; `data` may be unmapped afterwards. q4_0, q8_0, q4_k, q5_k, q6_k, f32, f16 and bf16 keep
/// their values bit for bit. q5_0 and iq4_nl become q8_0, q3_k becomes q6_k, q4_1, q5_1, iq4_xs and mxfp4 become q8_x: without loss.
/// f64 and q2_k become f32, the latter because no other type holds a scale and a min of 16 values.
/// `interleaved` as in PageBuffer. Throws Error{bad_file} if the slabs do not add up or the type holds no weights, Error{does_not_fit} without memory.
std::unique_ptr<ops::Weight> pack_weight(const ops::WeightData& data, ThreadPool& pool, CpuTier tier, bool interleaved = false);

/// Dequantises row `row` of `expert` to weight.cols floats: the values that the file's row dequantises to.
void read_row(const PackedWeight& weight, std::int64_t expert, std::int64_t row, float* out);

}  // namespace heirloom::cpu
