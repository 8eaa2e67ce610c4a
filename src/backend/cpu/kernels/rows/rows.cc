#include "backend/cpu/kernels/rows/rows.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "backend/cpu/kernels/tier_table.h"

namespace heirloom::cpu {

void byte_values(ThreadPool& pool, const std::uint8_t* bytes, const float* table, std::int64_t plane, ops::Matrix out) {
  pool.parallel_for(out.rows, rows_grain(out.cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t first = begin * out.cols; first < end * out.cols; first += plane) {
      const float* values = table + first % out.cols / plane * 256;
      for (std::int64_t i = first; i < first + plane; ++i) out.data[i] = values[bytes[i]];
    }
  });
}

void gather_rows(ThreadPool& pool, ops::Matrix x, const std::int32_t* rows, ops::Matrix out) {
  pool.parallel_for(out.rows, rows_grain(out.cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      std::memcpy(out.data + r * out.cols, x.data + rows[r] * x.cols, static_cast<std::size_t>(x.cols) * sizeof(float));
    }
  });
}

void scatter_rows(ThreadPool& pool, ops::Matrix x, const std::int32_t* rows, ops::Matrix out) {
  pool.parallel_for(x.rows, rows_grain(x.cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      std::memcpy(out.data + rows[r] * out.cols, x.data + r * x.cols, static_cast<std::size_t>(x.cols) * sizeof(float));
    }
  });
}

void argmax(ThreadPool& pool, CpuTier tier, ops::Matrix logits, std::int32_t* ids) {
  static constexpr LargestKernel kTables[4] = {scalar::largest_of, ssse3::largest_of, avx2::largest_of, avx512::largest_of};
  const LargestKernel largest = tier_table(kTables, tier);
  // A vocabulary row is a megabyte: it is cut into sections whose maxima threads find, then the first section with the
  // largest of them is searched for the first place.
  constexpr std::int64_t kMaxSections = 64;
  const std::int64_t section = std::max<std::int64_t>(16384, (logits.cols + kMaxSections - 1) / kMaxSections);
  const auto place_of = [&](const float* x, float value, std::int64_t first, std::int64_t last) {
    const float* found = std::find(x + first, x + last, value);
    return found == x + last ? 0 : static_cast<std::int32_t>(found - x);  // a row of NaN has no largest value
  };
  if (logits.cols <= section) {
    pool.parallel_for(logits.rows, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const float* x = logits.data + r * logits.cols;
        ids[r] = place_of(x, largest(x, logits.cols), 0, logits.cols);
      }
    });
    return;
  }
  for (std::int64_t r = 0; r < logits.rows; ++r) {
    const float* x = logits.data + r * logits.cols;
    float maxima[kMaxSections];
    pool.parallel_for(logits.cols, section, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t at = begin; at < end; at += section) {
        maxima[at / section] = largest(x + at, std::min(section, end - at));
      }
    });
    const std::int64_t sections = (logits.cols + section - 1) / section;
    const std::int64_t best = std::max_element(maxima, maxima + sections) - maxima;
    ids[r] = place_of(x, maxima[best], best * section, std::min((best + 1) * section, logits.cols));
  }
}

}  // namespace heirloom::cpu
