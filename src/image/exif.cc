#include "image/exif.h"

#include <cstdint>

namespace heirloom {
namespace {

/// Numbers of a TIFF structure in either byte order; reads past the end give nullopt.
class TiffView {
 public:
  explicit TiffView(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool read_header() {
    if (bytes_.size() < 8) return false;
    const auto first = std::to_integer<char>(bytes_[0]);
    if (first != std::to_integer<char>(bytes_[1]) || (first != 'I' && first != 'M')) return false;
    big_endian_ = first == 'M';
    return true;
  }
  std::optional<std::uint32_t> number(std::uint64_t offset, int size_bytes) const {
    if (offset > bytes_.size() || bytes_.size() - offset < static_cast<std::uint64_t>(size_bytes))
      return std::nullopt;
    std::uint32_t value = 0;
    for (int i = 0; i < size_bytes; ++i) {
      const int place = big_endian_ ? i : size_bytes - 1 - i;
      value =
          (value << 8) | std::to_integer<std::uint32_t>(bytes_[offset + static_cast<std::uint64_t>(place)]);
    }
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
  bool big_endian_ = false;
};

bool starts_with_exif_prefix(std::span<const std::byte> block) {
  constexpr std::string_view kPrefix{"Exif\0\0", 6};
  return block.size() >= kPrefix.size() &&
         std::string_view(reinterpret_cast<const char*>(block.data()), kPrefix.size()) == kPrefix;
}

}  // namespace

std::optional<int> exif_orientation(std::span<const std::byte> block) {
  while (starts_with_exif_prefix(block)) block = block.subspan(6);
  TiffView tiff(block);
  if (!tiff.read_header()) return std::nullopt;
  const auto directory = tiff.number(4, 4);
  if (!directory) return std::nullopt;
  const auto count = tiff.number(*directory, 2);
  if (!count) return std::nullopt;
  for (std::uint64_t i = 0; i < *count; ++i) {
    const std::uint64_t entry = std::uint64_t{*directory} + 2 + i * 12;  // tag, type, count, value
    const auto tag = tiff.number(entry, 2);
    const auto type = tiff.number(entry + 2, 2);
    if (!tag || !type) return std::nullopt;
    if (*tag != 0x0112) continue;
    // SHORT as the standard has it, or LONG (signed or not); one value, which sits in the entry itself.
    const int size_bytes = *type == 3 || *type == 8 ? 2 : *type == 4 || *type == 9 ? 4 : 0;
    if (size_bytes == 0 || tiff.number(entry + 4, 4) != 1u) return std::nullopt;
    const auto value = tiff.number(entry + 8, size_bytes);
    if (!value || *value > 0xffff) return std::nullopt;
    return static_cast<int>(*value);
  }
  return std::nullopt;
}

std::optional<int> xmp_orientation(std::string_view packet) {
  constexpr std::string_view kName = "tiff:Orientation";
  for (std::size_t at = packet.find(kName); at != std::string_view::npos; at = packet.find(kName, at + 1)) {
    std::string_view rest = packet.substr(at + kName.size());
    if (rest.starts_with("=\"")) {
      rest.remove_prefix(2);
    } else if (rest.starts_with(">")) {
      rest.remove_prefix(1);
    } else {
      continue;
    }
    if (!rest.empty() && rest[0] >= '0' && rest[0] <= '9') return rest[0] - '0';
  }
  return std::nullopt;
}

}  // namespace heirloom
