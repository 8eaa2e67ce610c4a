// Weights in device memory: which layout each type has there (kernels/weight_formats.h), and how a file's bytes get into it.
#pragma once

#include <memory>

#include "backend/cuda/weight_copies.h"
#include "backend/cuda/device.h"
#include "ops/backend.h"

namespace heirloom::cuda {

class CudaWeight : public ops::Weight {
 public:
  explicit CudaWeight(Device& device) : device_(device) {}
  ~CudaWeight() override {
    if (copies) copies->forget(*this);
    device_.free(data);
  }
  void* data = nullptr;
  std::uint64_t elements = 0;        // experts * rows * cols
  const char* format = "";           // part of kernel names: "q8_0"
  int group = 1;                     // weights that a gemv thread takes at a time
  bool scattered = false;            // whether those lie apart in a row (FORMAT::kScattered)
  unsigned unpacking_blocks() const { return static_cast<unsigned>((cols / (scattered ? group : 4) + 127) / 128); }  // of rows_FORMAT_* and a row
  std::shared_ptr<WeightCopies> copies;  // where a copy of it may be kept; set by the backend

 private:
  Device& device_;
};

/// Types that kernels read as they are; every other type is converted at load (convert_weight).
bool has_kernels(DType type, std::int64_t cols);

/// The type that `type` with rows of `cols` is converted to: q8_0 where that is exact (q5_0, iq4_nl), else f32.
DType converted_type(DType type, std::int64_t cols);

/// Converts `count` values of blocks of `type` (whole blocks) at `from`; `to` is q8_0 blocks or floats.
void convert_values(DType type, const std::byte* from, std::int64_t count, DType to_type, std::byte* to);

/// Uploads a weight through `staging` (device memory of `staging_bytes`, at least 1 MiB). Error{bad_file} for a type or a row
/// length that nothing here can hold, Error{does_not_fit} from the device.
std::unique_ptr<CudaWeight> upload_weight(Device& device, const ops::WeightData& data, void* staging,
                                          std::size_t staging_bytes);

}  // namespace heirloom::cuda
