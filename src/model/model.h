// A model bound to one backend: packed weights plus the forward pass of its family. A Model holds no sequence state; the
// engine owns states (ops::StateShape) and names them in the step's plan.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "ops/backend.h"

namespace heirloom::model {

/// Receives named intermediate tensors (names and shapes of the golden kit). `wants` is asked first; values come from the
/// host after a download. Only `verify` and `prune` use one: a forward pass without taps downloads nothing.
class Taps {
 public:
  virtual ~Taps() = default;
  virtual bool wants(std::string_view name) const = 0;
  virtual void floats(std::string_view name, std::span<const std::int64_t> shape, std::span<const float> values) = 0;
  virtual void ints(std::string_view name, std::span<const std::int64_t> shape, std::span<const std::int32_t> values) = 0;
};

/// Rows [first_row, first_row + count) of the step take these features instead of the token's embedding.
struct FeatureRows {
  std::int32_t first_row = 0;
  std::int32_t count = 0;
  const float* features = nullptr;  // device [count, hidden_size]
};

struct StepInput {
  ops::StepPlan plan;                           // must outlive the call
  std::vector<std::int32_t> token_ids;          // [plan.num_rows]; ids in [0, vocab_size)
  std::vector<std::int32_t> positions;          // [3, plan.num_rows]: t, h, w rows of M-RoPE (equal for plain text)
  std::vector<FeatureRows> features;
  std::vector<std::int32_t> logits_rows;        // rows whose logits are wanted, ascending
  bool want_hidden = false;                     // keep the state after the final norm of every row
};

struct StepOutput {
  ops::Matrix logits;  // device [logits_rows.size(), vocab_size], valid until the next forward
  ops::Matrix hidden;  // device [num_rows, hidden_size] after the final norm, if wanted
};

/// One picture for the tower: patches in the processor's order plus its grids.
struct VisionInput {
  std::vector<std::uint8_t> pixels;                  // [num_patches, C * (temporal) * patch * patch]
  std::array<std::array<float, 256>, 3> values{};    // what a byte of each channel stands for, normalised
  struct Grid {
    int t = 1, h = 0, w = 0;  // in patches
  };
  std::vector<Grid> grids;  // Qwen: one; MiniCPM: one per tile (source, then slices row by row)
  bool downsample_4x = false;  // MiniCPM only
};

/// Features of one picture, in prompt order.
struct VisionOutput {
  ops::Buffer features;  // device [tokens, hidden_size]
  std::int64_t tokens = 0;
  std::vector<std::int64_t> tokens_per_grid;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  virtual ops::Backend& backend() = 0;
  /// Geometry of a sequence state with KV entries of `kv_type` (f32, f16, bf16).
  virtual ops::StateShape state_shape(DType kv_type) const = 0;
  /// Runs all rows of the step through the model, updating the states that the plan names.
  virtual StepOutput forward(const StepInput& input, Taps* taps = nullptr) = 0;
  virtual bool has_vision() const = 0;
  /// Error{usage} if the model has no vision part.
  virtual VisionOutput encode_image(const VisionInput& input, Taps* taps = nullptr) = 0;
  /// Bytes of weights that one decoded token reads (active experts only), for bandwidth shares.
  virtual std::uint64_t active_weight_bytes() const = 0;
  virtual std::uint64_t weight_bytes() const = 0;
  /// Multiplications of one token's matrix products, with or without the logit matrix (active experts only).
  virtual std::uint64_t active_parameters(bool with_head) const = 0;
};

}  // namespace heirloom::model
