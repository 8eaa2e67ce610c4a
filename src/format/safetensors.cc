#include "format/safetensors.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/json.h"
#include "base/printable.h"
#include "format/byte_reader.h"
#include "format/safetensors_header.h"

namespace heirloom {
namespace {

// The format allows 100 MB; a published shard's header has some hundred kilobytes, one of 100,000 tensors
// about 14 MB. The lower limit bounds the memory that a hostile header can cost.
constexpr std::uint64_t kMaxHeaderBytes = 16 << 20;
constexpr std::uint64_t kMaxIndexBytes = 16 << 20;

struct SafetensorsType {
  std::string_view name;
  std::uint32_t bytes;
  std::optional<DType> type;  // empty: known by name, not supported
};

constexpr SafetensorsType kTypes[] = {
    {"F32", 4, DType::f32},       {"F16", 2, DType::f16},       {"BF16", 2, DType::bf16},
    {"F64", 8, DType::f64},       {"I8", 1, DType::i8},         {"I16", 2, DType::i16},
    {"I32", 4, DType::i32},       {"I64", 8, DType::i64},       {"U8", 1, DType::u8},
    {"BOOL", 1, std::nullopt},    {"U16", 2, std::nullopt},     {"U32", 4, std::nullopt},
    {"U64", 8, std::nullopt},     {"F8_E4M3", 1, std::nullopt}, {"F8_E5M2", 1, std::nullopt},
    {"F8_E8M0", 1, std::nullopt}, {"C64", 8, std::nullopt},
};

const SafetensorsType* find_type(std::string_view name) {
  const auto* found = std::ranges::find(kTypes, name, &SafetensorsType::name);
  return found == std::end(kTypes) ? nullptr : found;
}

std::string_view read_header_text(ByteReader& reader) {
  const auto length = reader.read<std::uint64_t>("header length");
  if (length > reader.remaining()) {
    reader.fail_at(0, "header length", "{} bytes, but only {} follow", length, reader.remaining());
  }
  if (length > kMaxHeaderBytes) {
    reader.fail_at(0, "header length", "{} bytes, at most {} are allowed", length, kMaxHeaderBytes);
  }
  const auto text = reader.read_bytes(length, "header");
  return {reinterpret_cast<const char*>(text.data()), text.size()};
}

// The format's own rule: the tensors cover the data section, each byte once.
void check_cover(const ByteReader& reader, const SafetensorsHeader& header) {
  const std::uint64_t data_start = reader.offset();
  std::vector<const SafetensorsRecord*> order;
  order.reserve(header.tensors.size());
  for (const SafetensorsRecord& record : header.tensors) order.push_back(&record);
  std::ranges::sort(order, [](const auto* a, const auto* b) {
    return a->begin != b->begin ? a->begin < b->begin : a->end < b->end;
  });
  const SafetensorsRecord* before = nullptr;
  std::uint64_t covered = 0;
  for (const SafetensorsRecord* record : order) {
    if (record->begin < covered) {
      reader.fail_at(data_start + record->begin, fmt::format("tensor \"{}\"", printable(record->name)),
                     "data_offsets [{}, {}] overlap those of \"{}\"", record->begin, record->end,
                     printable(before->name));
    }
    if (record->begin > covered) {
      reader.fail_at(data_start + covered, fmt::format("tensor \"{}\"", printable(record->name)),
                     "data_offsets start at {} and leave bytes from {} on unused", record->begin, covered);
    }
    covered = record->end;
    before = record;
  }
  if (covered != reader.remaining()) {
    reader.fail_at(data_start + covered, "data", "{} bytes follow the last tensor",
                   reader.remaining() - covered);
  }
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  ByteReader reader(file_.bytes(), path.string());
  const std::string_view text = read_header_text(reader);
  SafetensorsHeader header = parse_safetensors_header(text, path.string());
  const std::uint64_t data_start = reader.offset();
  const std::uint64_t data_bytes = reader.remaining();
  tensors_.reserve(header.tensors.size());
  names_.reserve(header.tensors.size());
  index_.reserve(header.tensors.size());
  for (const SafetensorsRecord& record : header.tensors) {
    const std::string field = fmt::format("tensor \"{}\"", printable(record.name));
    if (record.begin > record.end) {
      reader.fail_at(data_start, field, "data_offsets [{}, {}] run backwards", record.begin, record.end);
    }
    if (record.end > data_bytes) {
      reader.fail_at(data_start, field,
                     "data_offsets [{}, {}] run past the end of the file, {} bytes of data are there",
                     record.begin, record.end, data_bytes);
    }
    const SafetensorsType* type = find_type(record.dtype);
    if (type == nullptr) reader.fail_at(8, field, "dtype \"{}\" is not supported", printable(record.dtype));
    const auto bytes = checked_tensor_bytes(1, type->bytes, record.shape);
    if (!bytes)
      reader.fail_at(8, field, "the size of shape {} overflows 63 bits", shape_string(record.shape));
    if (*bytes != record.end - record.begin) {
      reader.fail_at(data_start + record.begin, field,
                     "size mismatch: shape {} of {} needs {} bytes, data_offsets [{}, {}] hold {}",
                     shape_string(record.shape), record.dtype, *bytes, record.begin, record.end,
                     record.end - record.begin);
    }
    if (!index_.emplace(record.name, tensors_.size()).second) reader.fail_at(8, field, "given twice");
    Tensor tensor;
    tensor.view = {record.name, type->type.value_or(DType::u8), record.shape,
                   file_.bytes().subspan(data_start + record.begin, *bytes)};
    if (!type->type) tensor.unsupported = record.dtype;
    names_.push_back(record.name);
    tensors_.push_back(std::move(tensor));
  }
  check_cover(reader, header);
  metadata_ = std::move(header.metadata);
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  if (found == index_.end()) return nullptr;
  const Tensor& tensor = tensors_[found->second];
  if (!tensor.unsupported.empty()) {
    fail(ErrorKind::bad_file, "{}: tensor \"{}\": dtype {} is not supported; F32, F16 and BF16 weights are",
         path().string(), printable(name), tensor.unsupported);
  }
  return &tensor.view;
}

void SafetensorsFile::release(const TensorView& tensor) const noexcept {
  file_.release(static_cast<std::uint64_t>(tensor.data.data() - file_.bytes().data()), tensor.data.size());
}

SafetensorsFolder::SafetensorsFolder(const std::filesystem::path& folder) : folder_(folder) {
  const auto single = folder / "model.safetensors";
  const auto index = folder / "model.safetensors.index.json";
  if (std::filesystem::exists(single)) {  // transformers looks for it first too
    shards_.push_back(std::make_unique<SafetensorsFile>(single));
    names_ = shards_.front()->names();
    for (const std::string& name : names_) owner_.emplace(name, shards_.front().get());
  } else if (std::filesystem::exists(index)) {
    open_index(index);
  } else {
    fail(ErrorKind::bad_file,
         "{}: neither model.safetensors nor model.safetensors.index.json is in this folder", folder.string());
  }
}

void SafetensorsFolder::open_index(const std::filesystem::path& index) {
  const std::string where = index.string();
  const auto json = parse_sorted_json(read_text_file(index, kMaxIndexBytes), where);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    fail(ErrorKind::bad_file, "{}: weight_map: missing or not an object of tensor names", where);
  }
  std::map<std::string, const SafetensorsFile*, std::less<>> opened;
  for (const auto& [name, value] : json["weight_map"].items()) {
    const std::string field = fmt::format("weight_map \"{}\"", printable(name));
    if (!value.is_string()) fail(ErrorKind::bad_file, "{}: {}: expected the name of a file", where, field);
    const auto& shard = value.get_ref<const std::string&>();
    // A shard lies beside its index; anything else would let a downloaded folder read files elsewhere.
    if (shard.empty() || shard.find('/') != std::string::npos || shard == "." || shard == ".." ||
        shard.find('\0') != std::string::npos) {
      fail(ErrorKind::bad_file, "{}: {}: \"{}\" is not the name of a file in this folder", where, field,
           printable(shard));
    }
    auto file = opened.find(shard);
    if (file == opened.end()) {
      const auto path = folder_ / shard;
      if (!std::filesystem::exists(path)) {
        fail(ErrorKind::bad_file, "{}: shard {} is missing; download it into this folder", where,
             printable(shard));
      }
      shards_.push_back(std::make_unique<SafetensorsFile>(path));
      file = opened.emplace(shard, shards_.back().get()).first;
    }
    if (file->second->find(name) == nullptr) {
      fail(ErrorKind::bad_file, "{}: {}: shard {} has no such tensor", where, field, printable(shard));
    }
    names_.push_back(name);
    owner_.emplace(name, file->second);
  }
}

const TensorView* SafetensorsFolder::find(std::string_view name) const {
  const auto found = owner_.find(std::string(name));
  return found == owner_.end() ? nullptr : found->second->find(name);
}

void SafetensorsFolder::release(const TensorView& tensor) const noexcept {
  if (const auto found = owner_.find(tensor.name); found != owner_.end()) found->second->release(tensor);
}

}  // namespace heirloom
