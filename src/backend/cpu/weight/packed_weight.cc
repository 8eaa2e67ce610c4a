#include "backend/cpu/weight/packed_weight.h"

#include <vector>

#include "backend/cpu/weight/pack_panel.h"
#include "base/check.h"
#include "base/log.h"

namespace heirloom::cpu {
namespace {

// Row pointers of a weight given as slabs.
class RowFinder {
 public:
  explicit RowFinder(const ops::WeightData& data) : data_(data), row_bytes_(row_bytes(data.type, static_cast<std::uint64_t>(data.cols))) {
    std::int64_t total = 0;
    for (const auto& slab : data.slabs) {
      starts_.push_back(total);
      total += slab.rows;
    }
    if (total != data.experts * data.rows) {
      fail(ErrorKind::bad_file, "{}: found {} rows, expected {} experts of {}", data.name, total, data.experts, data.rows);
    }
  }
  const std::byte* row(std::int64_t index) const {
    std::size_t slab = 0;
    for (std::size_t count = starts_.size(); count > 1;) {  // last start <= index
      const std::size_t half = count / 2;
      if (starts_[slab + half] <= index) slab += half;
      count -= half;
    }
    return data_.slabs[slab].data + static_cast<std::uint64_t>(index - starts_[slab]) * row_bytes_;
  }

 private:
  const ops::WeightData& data_;
  std::uint64_t row_bytes_;
  std::vector<std::int64_t> starts_;
};

}  // namespace

std::unique_ptr<ops::Weight> pack_weight(const ops::WeightData& data, ThreadPool& pool, CpuTier /*tier*/, bool interleaved) {
  const PackedType type = packed_type_of(data.type);
  if (data.experts <= 0 || data.rows <= 0 || data.cols <= 0 || data.cols % kBlockOf[static_cast<int>(type)] != 0 ||
      data.cols % dtype_info(data.type).block_size != 0) {
    fail(ErrorKind::bad_file, "{}: shape [{}, {}, {}] does not suit {} (blocks of {})", data.name, data.experts, data.rows,
         data.cols, dtype_name(data.type), dtype_info(data.type).block_size);
  }
  const RowFinder finder(data);
  if (!is_packable_as_is(data.type)) {
    log::debug("{}: {} is converted at load", data.name, dtype_name(data.type));
  }

  auto weight = std::make_unique<PackedWeight>();
  weight->type = data.type;
  weight->experts = data.experts;
  weight->rows = data.rows;
  weight->cols = data.cols;
  weight->packed_type = type;
  weight->panels = (data.rows + kPanelRows - 1) / kPanelRows;
  weight->panel_bytes = static_cast<std::uint64_t>(data.cols / kBlockOf[static_cast<int>(type)]) *
                        static_cast<std::uint64_t>(kBlockBytesOf[static_cast<int>(type)]);
  const std::int64_t panels = data.experts * weight->panels;
  weight->bytes = static_cast<std::uint64_t>(panels) * weight->panel_bytes;
  weight->buffer_ = PageBuffer(weight->bytes, interleaved);

  const std::uint64_t form_bytes = packed_row_bytes(type, data.cols);
  const std::vector<std::byte> zeros(form_bytes);
  const bool as_is = is_packable_as_is(data.type);
  std::byte* out = weight->buffer_.data();
  pool.parallel_for(panels, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::byte> converted(as_is ? 0 : form_bytes * kPanelRows);
    for (std::int64_t p = begin; p < end; ++p) {
      const std::int64_t expert = p / weight->panels;
      const std::int64_t first = p % weight->panels * kPanelRows;
      const std::byte* rows[kPanelRows];
      for (int r = 0; r < kPanelRows; ++r) {
        if (first + r >= data.rows) {
          rows[r] = zeros.data();
          continue;
        }
        rows[r] = finder.row(expert * data.rows + first + r);
        if (!as_is) {
          std::byte* to = converted.data() + static_cast<std::uint64_t>(r) * form_bytes;
          convert_row(data.type, rows[r], to, data.cols);
          rows[r] = to;
        }
      }
      pack_panel(type, rows, data.cols, out + static_cast<std::uint64_t>(p) * weight->panel_bytes);
    }
  });
  return weight;
}

void read_row(const PackedWeight& weight, std::int64_t expert, std::int64_t row, float* out) {
  unpack_row(weight.packed_type, weight.panel(expert, row / kPanelRows), static_cast<int>(row % kPanelRows), weight.cols, out);
}

}  // namespace heirloom::cpu
