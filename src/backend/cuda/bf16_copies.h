// BF16 copies of quantised weights in GPU memory. A prompt's products read BF16 rows; unpacking them at every use took a sixth of a
// dense 0.8B prefill on an H200, so a weight keeps its rows from the first prompt on where memory is plentiful. Copies are never in
// anyone's way: whoever finds memory short drops them all, and products unpack at each use as before. Results have the same bits.
#pragma once

#include <cstdint>
#include <map>

#include "backend/cuda/device.h"

namespace heirloom::cuda {

class CudaWeight;

class Bf16Copies {
 public:
  /// `enabled` false: none is ever kept.
  Bf16Copies(Device& device, bool enabled) : device_(device), enabled_(enabled) {}
  Bf16Copies(const Bf16Copies&) = delete;
  Bf16Copies& operator=(const Bf16Copies&) = delete;

  struct Copy {
    unsigned short* rows = nullptr;  // [weight.rows][weight.cols], or nullptr: unpack for this use
    bool fresh = false;              // just allocated: the caller fills it
  };
  /// The copy of a weight of one expert; a new one as long as half of the device's memory stays free after it.
  Copy of(const CudaWeight& weight);
  /// Frees the weight's copy; work that reads it must have passed.
  void forget(const CudaWeight& weight) noexcept;
  /// Frees all copies after the work that reads them, and keeps none from now on. False: there was none.
  bool drop();
  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Kept {
    void* data;
    std::uint64_t bytes;
  };
  Device& device_;
  bool enabled_;
  std::map<const CudaWeight*, Kept> kept_;
  std::uint64_t bytes_ = 0;
};

}  // namespace heirloom::cuda
