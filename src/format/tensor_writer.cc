#include "format/tensor_writer.h"

#include <array>
#include <utility>

#include "base/check.h"
#include "base/printable.h"
#include "format/tensor_view.h"

namespace heirloom {
namespace {

std::uint64_t spec_bytes(const TensorSpec& spec) {
  const DTypeInfo& info = dtype_info(spec.type);
  const auto bytes = checked_tensor_bytes(info.block_size, info.block_bytes, spec.shape);
  if (!bytes) {
    fail(ErrorKind::usage, "tensor \"{}\": shape {} cannot be stored as {}: rows must be whole blocks of {}",
         printable(spec.name), shape_string(spec.shape), info.name, info.block_size);
  }
  return *bytes;
}

}  // namespace

void TensorWriter::add_tensor(TensorSpec spec) {
  HEIRLOOM_CHECK(file_ == nullptr);
  spec_bytes(spec);
  check(spec);
  if (!names_.insert(spec.name).second)
    fail(ErrorKind::usage, "tensor \"{}\" is given twice", printable(spec.name));
  specs_.push_back(std::move(spec));
}

const std::vector<TensorSpec>& TensorWriter::begin() {
  HEIRLOOM_CHECK(file_ == nullptr);
  arrange(specs_);
  std::vector<std::uint64_t> offsets;
  std::uint64_t offset = 0;
  for (const TensorSpec& spec : specs_) {
    offsets.push_back(offset);
    bytes_.push_back(spec_bytes(spec));
    total_bytes_ += bytes_.back();
    offset = (offset + bytes_.back() + alignment_ - 1) / alignment_ * alignment_;
  }
  const std::string head = header(specs_, offsets);
  file_ = std::make_unique<OutputFile>(path_);
  file_->write(std::as_bytes(std::span(head)));
  skip_empty_tensors();
  return specs_;
}

void TensorWriter::skip_empty_tensors() {
  while (current_ < specs_.size() && bytes_[current_] == 0) ++current_;
}

void TensorWriter::write(std::span<const std::byte> bytes) {
  HEIRLOOM_CHECK(file_ != nullptr);
  while (!bytes.empty()) {
    HEIRLOOM_CHECK(current_ < specs_.size());  // more data than declared
    const auto part = bytes.first(std::min<std::uint64_t>(bytes.size(), bytes_[current_] - current_bytes_));
    file_->write(part);
    bytes = bytes.subspan(part.size());
    current_bytes_ += part.size();
    done_bytes_ += part.size();
    if (current_bytes_ < bytes_[current_]) continue;
    static constexpr std::array<std::byte, 64> kZeros{};
    const std::uint64_t padding = (alignment_ - current_bytes_ % alignment_) % alignment_;
    HEIRLOOM_CHECK(padding <= kZeros.size());
    file_->write(std::span(kZeros).first(padding));
    ++current_;
    current_bytes_ = 0;
    skip_empty_tensors();
  }
  if (progress_) progress_(done_bytes_, total_bytes_);
}

void TensorWriter::finish() {
  HEIRLOOM_CHECK(file_ != nullptr);
  if (current_ < specs_.size()) {
    fail(ErrorKind::internal, "{}: tensor \"{}\" was declared and not written", path_.string(),
         printable(specs_[current_].name));
  }
  file_->commit();
  file_.reset();
}

}  // namespace heirloom
