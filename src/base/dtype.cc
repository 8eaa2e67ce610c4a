#include "base/dtype.h"

#include <array>
#include <cctype>

#include "base/check.h"

namespace heirloom {
namespace {

// Block layouts: ggml's ggml-common.h (public block structs of the GGUF format), sizes in bytes.
constexpr std::array<DTypeInfo, 22> kInfo = {{
    {"f32", 1, 4},      {"f16", 1, 2},      {"bf16", 1, 2},     {"f64", 1, 8},      {"i8", 1, 1},
    {"i16", 1, 2},      {"i32", 1, 4},      {"i64", 1, 8},      {"u8", 1, 1},       {"q4_0", 32, 18},
    {"q4_1", 32, 20},   {"q5_0", 32, 22},   {"q5_1", 32, 24},   {"q8_0", 32, 34},   {"q2_k", 256, 84},
    {"q3_k", 256, 110}, {"q4_k", 256, 144}, {"q5_k", 256, 176}, {"q6_k", 256, 210}, {"iq4_nl", 32, 18},
    {"iq4_xs", 256, 136}, {"mxfp4", 32, 17},
}};

}  // namespace

const DTypeInfo& dtype_info(DType type) { return kInfo.at(static_cast<std::size_t>(type)); }

std::optional<DType> parse_dtype(std::string_view name) {
  for (std::size_t i = 0; i < kInfo.size(); ++i) {
    const std::string_view known = kInfo[i].name;
    if (known.size() != name.size()) continue;
    bool same = true;
    for (std::size_t j = 0; j < name.size(); ++j) {
      same = same && std::tolower(static_cast<unsigned char>(name[j])) == known[j];
    }
    if (same) return static_cast<DType>(i);
  }
  return std::nullopt;
}

std::uint64_t row_bytes(DType type, std::uint64_t cols) {
  const DTypeInfo& info = dtype_info(type);
  HEIRLOOM_CHECK(cols % info.block_size == 0);
  return cols / info.block_size * info.block_bytes;
}

}  // namespace heirloom
