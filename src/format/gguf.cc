#include "format/gguf.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/printable.h"

namespace heirloom {
namespace {

constexpr std::uint64_t kMaxTensors = 131'072;  // the largest published files hold some thousands
constexpr std::uint64_t kMaxNameBytes = 1'024;  // ggml itself stops at 63
constexpr std::uint32_t kMaxDims = 4;           // ggml's GGML_MAX_DIMS
constexpr std::uint64_t kMaxAlignment =
    1 << 20;  // the default is 32; a larger power of two is padding without use

void read_magic_and_version(ByteReader& reader, std::uint32_t& version) {
  const auto magic = reader.read_bytes(4, "magic");
  const std::string_view text(reinterpret_cast<const char*>(magic.data()), magic.size());
  if (text != "GGUF") {
    reader.fail_at(0, "magic", "found \"{}\", expected \"GGUF\": {}", printable(text),
                   text == "FUGG" ? "the byte order of this file is not supported" : "not a GGUF file");
  }
  version = reader.read<std::uint32_t>("version");
  if (version == 2 || version == 3) return;
  if (version != 0 && (version & 0xffffu) == 0) {
    reader.fail_at(
        4, "version",
        "found {:#010x}: big-endian byte order is not supported, convert the file to little-endian", version);
  }
  reader.fail_at(4, "version", "found {}, versions 2 and 3 are supported", version);
}

std::uint64_t read_alignment(const GgufMetadata& metadata, const std::string& file) {
  const GgufEntry* entry = metadata.find("general.alignment");
  if (entry == nullptr) return 32;
  const std::uint64_t alignment = metadata.get_u64("general.alignment");
  if (!std::has_single_bit(alignment) || alignment > kMaxAlignment) {
    fail(ErrorKind::bad_file,
         "{}: offset {}: key \"general.alignment\": found {}, expected a power of two up to {}", file,
         entry->offset, alignment, kMaxAlignment);
  }
  return alignment;
}

}  // namespace

GgufFile::GgufFile(const std::filesystem::path& path) : file_(path) {
  ByteReader reader(file_.bytes(), path.string());
  read_magic_and_version(reader, version_);
  const std::uint64_t count_offset = reader.offset();
  const auto tensor_count = reader.read<std::uint64_t>("tensor_count");
  const auto kv_count = reader.read<std::uint64_t>("metadata_kv_count");
  // The smallest table entry: an empty name's length, no dimensions, a type, an offset.
  if (tensor_count > reader.remaining() / 24) {
    reader.fail_at(count_offset, "tensor_count", "{} tensors cannot fit in the {} bytes left in the file",
                   tensor_count, reader.remaining());
  }
  if (tensor_count > kMaxTensors) {
    reader.fail_at(count_offset, "tensor_count", "{} tensors are above the limit of {}", tensor_count,
                   kMaxTensors);
  }
  metadata_ = GgufMetadata(reader, kv_count);
  alignment_ = read_alignment(metadata_, path.string());
  tensors_.reserve(tensor_count);
  names_.reserve(tensor_count);
  index_.reserve(tensor_count);
  for (std::uint64_t i = 0; i < tensor_count; ++i) read_tensor_info(reader, i);
  place_tensors(reader);
}

void GgufFile::read_tensor_info(ByteReader& reader, std::uint64_t index) {
  const std::uint64_t start = reader.offset();
  Tensor tensor{};
  tensor.view.name = reader.read_string(fmt::format("name of tensor {}", index), kMaxNameBytes);
  const std::string field = fmt::format("tensor \"{}\"", printable(tensor.view.name));
  if (!index_.emplace(tensor.view.name, index).second) reader.fail_at(start, field, "given twice");

  const std::uint64_t dims_offset = reader.offset();
  const auto num_dims = reader.read<std::uint32_t>(field);
  if (num_dims > kMaxDims) {
    reader.fail_at(dims_offset, field, "{} dimensions, at most {} are allowed", num_dims, kMaxDims);
  }
  tensor.view.shape.resize(num_dims);
  for (std::uint32_t i = 0; i < num_dims; ++i) {
    tensor.view.shape[num_dims - 1 - i] =
        reader.read<std::uint64_t>(field);  // the file lists the innermost first
  }
  if (std::ranges::count(tensor.view.shape, 0u) != 0) {
    reader.fail_at(dims_offset, field, "shape {} has an empty dimension", shape_string(tensor.view.shape));
  }

  const std::uint64_t type_offset = reader.offset();
  const auto type_number = reader.read<std::uint32_t>(field);
  tensor.type = find_ggml_type(type_number);
  if (tensor.type == nullptr) reader.fail_at(type_offset, field, "tensor type {} is unknown", type_number);
  if (tensor.type->block_size == 0) {
    reader.fail_at(type_offset, field,
                   "tensor type {} was removed from the format; make the file again from the original",
                   tensor.type->name);
  }
  if (tensor.type->type) tensor.view.type = *tensor.type->type;
  if (tensor.view.cols() % tensor.type->block_size != 0) {
    reader.fail_at(dims_offset, field, "shape {}: rows of {} are not whole blocks of {} ({})",
                   shape_string(tensor.view.shape), tensor.view.cols(), tensor.type->block_size,
                   tensor.type->name);
  }
  const auto bytes =
      checked_tensor_bytes(tensor.type->block_size, tensor.type->block_bytes, tensor.view.shape);
  if (!bytes) {
    reader.fail_at(dims_offset, field, "the size of shape {} overflows 63 bits",
                   shape_string(tensor.view.shape));
  }
  tensor.bytes = *bytes;

  const std::uint64_t offset_offset = reader.offset();
  tensor.offset = reader.read<std::uint64_t>(field);
  if (tensor.offset % alignment_ != 0) {
    reader.fail_at(offset_offset, field, "data offset {} is not a multiple of the alignment {}",
                   tensor.offset, alignment_);
  }
  names_.push_back(tensor.view.name);
  tensors_.push_back(std::move(tensor));
}

void GgufFile::place_tensors(const ByteReader& reader) {
  if (tensors_.empty()) return;
  const std::uint64_t file_size = file_.bytes().size();
  // Cannot wrap: the offset is within the file and the alignment at most 2^20.
  const std::uint64_t data_start = (reader.offset() + alignment_ - 1) / alignment_ * alignment_;
  const std::uint64_t data_bytes = data_start < file_size ? file_size - data_start : 0;
  for (Tensor& tensor : tensors_) {
    if (tensor.offset > data_bytes || tensor.bytes > data_bytes - tensor.offset) {
      reader.fail_at(
          data_start, fmt::format("tensor \"{}\"", printable(tensor.view.name)),
          "tensor data runs past the end of the file: {} bytes at {} of the data section, which has {}",
          tensor.bytes, tensor.offset, data_bytes);
    }
    tensor.view.data = file_.bytes().subspan(data_start + tensor.offset, tensor.bytes);
  }
  std::vector<std::size_t> order(tensors_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return tensors_[i].offset; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const Tensor& before = tensors_[order[i - 1]];
    const Tensor& after = tensors_[order[i]];
    if (after.offset < before.offset + before.bytes) {
      reader.fail_at(data_start + after.offset, fmt::format("tensor \"{}\"", printable(after.view.name)),
                     "its data overlaps that of \"{}\"", printable(before.view.name));
    }
  }
}

const TensorView* GgufFile::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  if (found == index_.end()) return nullptr;
  const Tensor& tensor = tensors_[found->second];
  if (!tensor.type->type) {
    fail(ErrorKind::bad_file,
         "{}: tensor \"{}\": type {} is not supported; quantise the model to another type (q4_k, q8_0, ...)",
         path().string(), printable(name), tensor.type->name);
  }
  return &tensor.view;
}

void GgufFile::release(const TensorView& tensor) const noexcept {
  file_.release(static_cast<std::uint64_t>(tensor.data.data() - file_.bytes().data()), tensor.data.size());
}

std::string_view GgufFile::type_name(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? std::string_view{} : tensors_[found->second].type->name;
}

}  // namespace heirloom
