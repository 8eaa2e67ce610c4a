// Copies of weights in GPU memory as the rows that products of many rows read: BF16, or FP32 where products are. Unpacking a weight at every use
// took a sixth of a dense 0.8B prefill on an H200 (BF16), so a weight keeps its rows from the first prompt on where memory is
// plentiful. Copies are never in anyone's way: whoever finds memory short drops them all, and products unpack at each use as before. Results
// have the same bits.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "backend/cuda/device.h"

namespace heirloom::cuda {

class CudaWeight;

class WeightCopies {
 public:
  /// `enabled` false: none is ever kept. `element_bytes`: 2 for BF16, 4 for FP32.
  WeightCopies(Device& device, bool enabled, std::size_t element_bytes) : device_(device), enabled_(enabled), element_bytes_(element_bytes) {}
  WeightCopies(const WeightCopies&) = delete;
  WeightCopies& operator=(const WeightCopies&) = delete;

  struct Copy {
    void* rows = nullptr;  // the weights' rows one after another, or nullptr: unpack for this use
    bool fresh = false;    // just allocated: the caller fills it
  };
  /// The copy of weights of one expert each and as many columns, as one matrix; a new one as long as three sixteenths of the device's memory stays free
  /// after it.
  Copy of(std::span<const CudaWeight* const> joined);
  /// Frees the copies with the weight; work that reads them must have passed.
  void forget(const CudaWeight& weight) noexcept;
  /// Frees all copies after the work that reads them, and keeps none from now on. False: there was none.
  bool drop();
  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Kept {
    std::vector<const CudaWeight*> joined;
    void* data;
    std::uint64_t bytes;
  };
  Device& device_;
  bool enabled_;
  std::size_t element_bytes_;
  std::multimap<const CudaWeight*, Kept> kept_;  // by the first weight
  std::uint64_t bytes_ = 0;
};

}  // namespace heirloom::cuda
