// Temporary matrices of one forward pass, cut from growing blocks of backend memory. The same sequence of requests gives
// the same addresses every time (recorded steps depend on that), and nothing is allocated once the largest pass was seen.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "ops/backend.h"

namespace heirloom::model {

class Scratch {
 public:
  explicit Scratch(ops::Backend& backend) : backend_(backend) {}

  /// Forgets everything handed out; memory is kept.
  void reset() {
    block_ = 0;
    used_ = 0;
  }
  /// Returns what was handed out during its lifetime when it ends (ops are ordered, so the memory may be used again).
  class Frame {
   public:
    explicit Frame(Scratch& scratch) : scratch_(scratch), block_(scratch.block_), used_(scratch.used_) {}
    ~Frame() {
      scratch_.block_ = block_;
      scratch_.used_ = used_;
    }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    Scratch& scratch_;
    std::size_t block_, used_;
  };
  float* floats(std::int64_t count) { return static_cast<float*>(take(static_cast<std::size_t>(count) * sizeof(float))); }
  ops::Matrix matrix(std::int64_t rows, std::int64_t cols) { return {floats(rows * cols), rows, cols}; }
  /// Matrices that follow each other without gaps: a backend may make them in one go.
  template <int Count>
  std::array<ops::Matrix, Count> matrices(std::int64_t rows, std::int64_t cols) {
    std::array<ops::Matrix, Count> all;
    float* at = floats(Count * rows * cols);
    for (ops::Matrix& matrix : all) {
      matrix = {at, rows, cols};
      at += rows * cols;
    }
    return all;
  }
  /// Device copy of host values.
  template <class T>
  T* upload(std::span<const T> values) {
    auto* device = static_cast<T*>(take(values.size_bytes()));
    if (!values.empty()) backend_.upload(device, values.data(), values.size_bytes());
    return device;
  }
  /// Host data that goes to the device as one copy (each costs a step of one token microseconds): add() all, then send().
  class Batch {
   public:
    explicit Batch(Scratch& scratch) : scratch_(scratch) { scratch_.batch_.clear(); }
    /// Where the values will lie, from the address that send() gives.
    template <class T>
    std::size_t add(std::span<const T> values) {
      const std::size_t at = scratch_.batch_.size();
      const auto bytes = std::as_bytes(values);
      scratch_.batch_.insert(scratch_.batch_.end(), bytes.begin(), bytes.end());
      scratch_.batch_.resize((scratch_.batch_.size() + kAlignment - 1) / kAlignment * kAlignment);
      return at;
    }
    std::byte* send() {
      auto* device = static_cast<std::byte*>(scratch_.take(scratch_.batch_.size()));
      if (!scratch_.batch_.empty()) scratch_.backend_.upload(device, scratch_.batch_.data(), scratch_.batch_.size());
      return device;
    }

   private:
    Scratch& scratch_;
  };

 private:
  static constexpr std::size_t kAlignment = 256, kMinBlock = std::size_t{4} << 20;

  void* take(std::size_t bytes) {
    bytes = (std::max<std::size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
    while (block_ < blocks_.size() && used_ + bytes > blocks_[block_].bytes()) {
      ++block_;
      used_ = 0;
    }
    if (block_ == blocks_.size()) blocks_.push_back(backend_.make_buffer(std::max(bytes, kMinBlock)));
    void* address = static_cast<std::byte*>(blocks_[block_].data()) + used_;
    used_ += bytes;
    return address;
  }

  ops::Backend& backend_;
  std::vector<ops::Buffer> blocks_;
  std::vector<std::byte> batch_;
  std::size_t block_ = 0, used_ = 0;
};

}  // namespace heirloom::model
