#include "format/gguf_metadata.h"

#include <cmath>
#include <limits>

#include "base/printable.h"

namespace heirloom {
namespace {

// Real files have some fifty keys; the limits bound the memory of the index, not the values, which stay in
// the mapping.
constexpr std::uint64_t kMaxKeys = 65'536;
constexpr std::uint64_t kMaxKeyBytes = 65'535;  // GGUF specification: "at most 2^16-1 bytes long"

template <typename T>
T load(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof(T));
  return value;
}

bool is_integer(GgufType type) {
  switch (type) {
    case GgufType::u8:
    case GgufType::i8:
    case GgufType::u16:
    case GgufType::i16:
    case GgufType::u32:
    case GgufType::i32:
    case GgufType::u64:
    case GgufType::i64:
      return true;
    default:
      return false;
  }
}

bool is_float(GgufType type) {
  return type == GgufType::f32 || type == GgufType::f64;
}

// Any integer as (negative, two's complement bits).
struct Integer {
  std::uint64_t bits;
  bool negative;
};

template <typename T>
Integer widen(const std::byte* data) {
  const T value = load<T>(data);
  return {static_cast<std::uint64_t>(value), value < T{0}};
}

Integer load_integer(GgufType type, const std::byte* data) {
  switch (type) {
    case GgufType::u8:
      return {load<std::uint8_t>(data), false};
    case GgufType::u16:
      return {load<std::uint16_t>(data), false};
    case GgufType::u32:
      return {load<std::uint32_t>(data), false};
    case GgufType::u64:
      return {load<std::uint64_t>(data), false};
    case GgufType::i8:
      return widen<std::int8_t>(data);
    case GgufType::i16:
      return widen<std::int16_t>(data);
    case GgufType::i32:
      return widen<std::int32_t>(data);
    case GgufType::i64:
      return widen<std::int64_t>(data);
    default:
      break;
  }
  HEIRLOOM_CHECK(false);
}

float load_float(GgufType type, const std::byte* data) {
  if (type == GgufType::f32) return load<float>(data);
  const double value = load<double>(data);
  // A double beyond float's range converts to infinity by hand: the plain conversion is undefined.
  if (std::fabs(value) > static_cast<double>(std::numeric_limits<float>::max())) {
    return std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(value > 0 ? 1 : -1));
  }
  return static_cast<float>(value);
}

std::string field_name(std::string_view key) {
  return fmt::format("key \"{}\"", printable(key));
}

GgufType read_type(ByteReader& reader, const std::string& field) {
  const std::uint64_t offset = reader.offset();
  const auto number = reader.read<std::uint32_t>(field);
  if (number > static_cast<std::uint32_t>(GgufType::f64)) {
    reader.fail_at(offset, field, "value type {} is unknown, expected 0 to 12", number);
  }
  return static_cast<GgufType>(number);
}

void check_bools(const ByteReader& reader, const GgufEntry& entry, const std::string& field) {
  for (std::size_t i = 0; i < entry.payload.size(); ++i) {
    const auto value = std::to_integer<unsigned>(entry.payload[i]);
    if (value > 1) reader.fail_at(entry.offset + i, field, "bool is {}, expected 0 or 1", value);
  }
}

// Reads the value after its type; the payload's extent is found without allocating.
void read_value(ByteReader& reader, GgufEntry& entry, const std::string& field) {
  if (entry.type == GgufType::array) {
    entry.element = read_type(reader, field);
    if (entry.element == GgufType::array) reader.fail_here(field, "arrays of arrays are not supported");
    const std::uint64_t offset = reader.offset();
    entry.count = reader.read<std::uint64_t>(field);
    // A string takes at least the 8 bytes of its length.
    const std::uint64_t least = entry.element == GgufType::string ? 8 : gguf_type_bytes(entry.element);
    if (entry.count > reader.remaining() / least) {
      reader.fail_at(
          offset, field, "array length too large: {} elements of {}{} bytes, {} bytes are left in the file",
          entry.count, entry.element == GgufType::string ? "at least " : "", least, reader.remaining());
    }
  } else {
    entry.element = entry.type;
  }
  entry.offset = reader.offset();
  if (entry.element == GgufType::string) {
    for (std::uint64_t i = 0; i < entry.count; ++i) {
      reader.read_string(field, std::numeric_limits<std::uint64_t>::max());
    }
  } else {
    reader.read_bytes(entry.count * gguf_type_bytes(entry.element), field);
  }
  entry.payload = reader.all().subspan(entry.offset, reader.offset() - entry.offset);
  if (entry.element == GgufType::boolean) check_bools(reader, entry, field);
}

std::string_view string_at(std::span<const std::byte> payload) {
  return {reinterpret_cast<const char*>(payload.data()) + 8, load<std::uint64_t>(payload.data())};
}

}  // namespace

std::string GgufEntry::type_name() const {
  if (type != GgufType::array) return std::string(gguf_type_name(type));
  return fmt::format("array of {}", gguf_type_name(element));
}

GgufMetadata::GgufMetadata(ByteReader& reader, std::uint64_t count) : file_(reader.file()) {
  // The smallest pair: an empty key's length, a type, a one-byte value.
  if (count > reader.remaining() / 13) {
    reader.fail_here("metadata_kv_count", "{} key-value pairs cannot fit in the {} bytes left in the file",
                     count, reader.remaining());
  }
  if (count > kMaxKeys) {
    reader.fail_here("metadata_kv_count", "{} key-value pairs are above the limit of {}", count, kMaxKeys);
  }
  entries_.reserve(count);
  index_.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t offset = reader.offset();
    GgufEntry entry;
    entry.key = reader.read_string(fmt::format("key of metadata pair {}", i), kMaxKeyBytes);
    const std::string field = field_name(entry.key);
    if (!index_.emplace(entry.key, i).second) reader.fail_at(offset, field, "given twice");
    entry.type = read_type(reader, field);
    read_value(reader, entry, field);
    entries_.push_back(entry);
  }
}

const GgufEntry* GgufMetadata::find(std::string_view key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

const GgufEntry& GgufMetadata::require(std::string_view key) const {
  if (const GgufEntry* entry = find(key)) return *entry;
  fail(ErrorKind::bad_file, "{}: key \"{}\" is missing", file_, printable(key));
}

void GgufMetadata::refuse_type(const GgufEntry& entry, std::string_view expected) const {
  fail(ErrorKind::bad_file, "{}: offset {}: {}: found {}, expected {}", file_, entry.offset,
       field_name(entry.key), entry.type_name(), expected);
}

const GgufEntry& GgufMetadata::expect_array(const GgufEntry& entry, std::string_view expected,
                                            bool element_fits) const {
  if (entry.type != GgufType::array || !element_fits) refuse_type(entry, expected);
  return entry;
}

std::uint64_t GgufMetadata::as_u64(const GgufEntry& entry) const {
  if (!is_integer(entry.type)) refuse_type(entry, "an integer");
  const Integer value = load_integer(entry.type, entry.payload.data());
  if (value.negative) {
    fail(ErrorKind::bad_file, "{}: offset {}: {}: found {}, expected no negative number", file_, entry.offset,
         field_name(entry.key), static_cast<std::int64_t>(value.bits));
  }
  return value.bits;
}

int GgufMetadata::as_count(const GgufEntry& entry) const {
  const std::uint64_t value = as_u64(entry);
  if (value > static_cast<std::uint64_t>(std::numeric_limits<int>::max())) {
    fail(ErrorKind::bad_file, "{}: offset {}: {}: found {}, expected at most {}", file_, entry.offset,
         field_name(entry.key), value, std::numeric_limits<int>::max());
  }
  return static_cast<int>(value);
}

float GgufMetadata::as_f32(const GgufEntry& entry) const {
  if (!is_float(entry.type)) refuse_type(entry, "float32");
  return load_float(entry.type, entry.payload.data());
}

bool GgufMetadata::as_bool(const GgufEntry& entry) const {
  if (entry.type != GgufType::boolean) refuse_type(entry, "bool");
  return entry.payload[0] != std::byte{0};
}

std::string_view GgufMetadata::as_string(const GgufEntry& entry) const {
  if (entry.type != GgufType::string) refuse_type(entry, "string");
  return string_at(entry.payload);
}

std::vector<std::string_view> GgufMetadata::as_strings(const GgufEntry& entry) const {
  expect_array(entry, "array of string", entry.element == GgufType::string);
  std::vector<std::string_view> out;
  out.reserve(entry.count);
  std::size_t at = 0;
  for (std::uint64_t i = 0; i < entry.count; ++i) {
    out.push_back(string_at(entry.payload.subspan(at)));
    at += 8 + out.back().size();
  }
  return out;
}

std::vector<std::int64_t> GgufMetadata::as_i64s(const GgufEntry& entry) const {
  expect_array(entry, "array of integers", is_integer(entry.element));
  const std::size_t step = gguf_type_bytes(entry.element);
  std::vector<std::int64_t> out(entry.count);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const Integer value = load_integer(entry.element, entry.payload.data() + i * step);
    if (!value.negative &&
        value.bits > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      fail(ErrorKind::bad_file, "{}: offset {}: {}: element {} is {}, expected at most 2^63 - 1", file_,
           entry.offset + i * step, field_name(entry.key), i, value.bits);
    }
    out[i] = static_cast<std::int64_t>(value.bits);
  }
  return out;
}

std::vector<float> GgufMetadata::as_f32s(const GgufEntry& entry) const {
  expect_array(entry, "array of float32", is_float(entry.element));
  const std::size_t step = gguf_type_bytes(entry.element);
  std::vector<float> out(entry.count);
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = load_float(entry.element, entry.payload.data() + i * step);
  return out;
}

std::vector<bool> GgufMetadata::as_bools(const GgufEntry& entry) const {
  expect_array(entry, "array of bool", entry.element == GgufType::boolean);
  std::vector<bool> out(entry.count);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = entry.payload[i] != std::byte{0};
  return out;
}

// Each pair of accessors differs only in what a missing key means.
#define HEIRLOOM_GGUF_ACCESSORS(Type, suffix)                                          \
  Type GgufMetadata::get_##suffix(std::string_view key) const {                        \
    return as_##suffix(require(key));                                                  \
  }                                                                                    \
  std::optional<Type> GgufMetadata::find_##suffix(std::string_view key) const {        \
    const GgufEntry* entry = find(key);                                                \
    return entry == nullptr ? std::nullopt : std::optional<Type>(as_##suffix(*entry)); \
  }
HEIRLOOM_GGUF_ACCESSORS(std::uint64_t, u64)
HEIRLOOM_GGUF_ACCESSORS(int, count)
HEIRLOOM_GGUF_ACCESSORS(float, f32)
HEIRLOOM_GGUF_ACCESSORS(bool, bool)
HEIRLOOM_GGUF_ACCESSORS(std::string_view, string)
HEIRLOOM_GGUF_ACCESSORS(std::vector<std::string_view>, strings)
HEIRLOOM_GGUF_ACCESSORS(std::vector<std::int64_t>, i64s)
HEIRLOOM_GGUF_ACCESSORS(std::vector<float>, f32s)
HEIRLOOM_GGUF_ACCESSORS(std::vector<bool>, bools)
#undef HEIRLOOM_GGUF_ACCESSORS

}  // namespace heirloom
