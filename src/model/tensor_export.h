// A model's tensors as a GGUF file keeps them, whatever they come from: our names, effective values, value heads in tiled
// order. `quantize` and `prune` write files from this, a few rows at a time, so that a checkpoint larger than memory passes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/model_files.h"
#include "model/tensor_names.h"
#include "ops/backend.h"

namespace heirloom::model {

/// What a tensor is for, which decides the types it may be stored in.
enum class TensorRole : std::uint8_t {
  exact,      // norms, biases, A, dt, conv, routers, position tables: float32
  small,      // tiny projections (alpha, beta): at least 8 bits
  linear,     // everything that a GEMM reads
  head,       // the logit matrix: output.weight, or token_embd.weight when tied
  embedding,  // token_embd.weight of an untied model
  patch,      // patch embedding (a convolution: rows are not whole blocks)
};

struct ExportTensor {
  std::string name;
  std::vector<std::uint64_t> shape;  // row-major, outermost first
  TensorRole role = TensorRole::linear;
  bool vision = false;
  DType source_type = DType::f32;

  std::int64_t rows() const;  // product of all dimensions but the last
  std::int64_t cols() const { return static_cast<std::int64_t>(shape.back()); }
};

/// Routed experts that stay, by layer: ascending indices into the source's experts. Empty = all of them.
using ExpertSelection = std::vector<std::vector<std::int64_t>>;

class TensorExporter {
 public:
  /// With `kept`, expert tensors and router rows of the other experts are left out (the tensors' shapes say so).
  /// Error{bad_file} if a tensor that the config asks for is missing or misshapen.
  explicit TensorExporter(const ModelFiles& files, const ExpertSelection& kept = {});

  const std::vector<ExportTensor>& tensors() const { return tensors_; }
  /// Rows [first, first + count) of tensor `index` as float32, [count, cols]. Thread-safe.
  void read_rows(std::size_t index, std::int64_t first, std::int64_t count, float* out) const;
  /// The tensor's bytes, piece after piece, when they can be taken over as they are; nullopt when values or the order of
  /// columns change on the way.
  std::optional<std::vector<std::span<const std::byte>>> raw(std::size_t index) const;
  /// Lets go of the file's pages of a tensor that was read.
  void release(std::size_t index) const;

 private:
  struct Source {
    ops::WeightData data;  // rows in the file's order
    HfTransform transform = HfTransform::none;
    std::vector<std::int64_t> row_map;     // output row -> row of data; empty = identity
    std::vector<std::int64_t> column_map;  // output column -> column of data; empty = identity
  };

  void add(const std::string& name, bool vision);
  void keep_experts(const std::string& name, ExportTensor& tensor, Source& source) const;
  void add_patches(const std::string& name);
  std::vector<std::int64_t> tiled_order(std::int64_t first, std::int64_t head_size) const;
  const std::byte* row_data(const Source& source, std::int64_t row) const;

  const ModelFiles& files_;
  ExpertSelection kept_;
  WeightReader reader_;
  std::vector<ExportTensor> tensors_;
  std::vector<Source> sources_;
};

}  // namespace heirloom::model
