// Hands intermediate tensors to Taps under the golden kit's names, value heads always in the reference's (grouped) order.
#pragma once

#include <string>
#include <vector>

#include "model/config.h"
#include "model/model.h"

namespace heirloom::model {

class TapEmitter {
 public:
  TapEmitter(ops::Backend& backend, Taps* taps) : backend_(backend), taps_(taps) {}

  explicit operator bool() const { return taps_ != nullptr; }
  bool wants(const std::string& name) const { return taps_ != nullptr && taps_->wants(name); }

  /// Downloads and emits `data` as `shape` if wanted.
  void floats(const std::string& name, const float* device, const std::vector<std::int64_t>& shape);
  void ints(const std::string& name, const std::int32_t* device, const std::vector<std::int64_t>& shape);
  void host_ints(const std::string& name, std::span<const std::int32_t> values, const std::vector<std::int64_t>& shape);
  void host_floats(const std::string& name, std::span<const float> values, const std::vector<std::int64_t>& shape);
  void matrix(const std::string& name, ops::Matrix m) { floats(name, m.data, {m.rows, m.cols}); }

  /// Like floats, for rows of `row_floats` values whose last num_v_heads * head_floats are value heads, which a GGUF keeps
  /// in tiled order (head i * nk + j belongs to key head j): they are put into grouped order (j * r + i) first.
  void value_heads(const std::string& name, const float* device, const std::vector<std::int64_t>& shape,
                   const TextConfig& config, std::int64_t row_floats, std::int64_t head_floats);

 private:
  std::vector<float> fetch(const float* device, const std::vector<std::int64_t>& shape);

  ops::Backend& backend_;
  Taps* taps_;
};

/// Puts the value heads at the end of each row of `row_floats` values from tiled into grouped order.
void untile_value_heads(std::span<float> values, const TextConfig& config, std::int64_t row_floats,
                        std::int64_t head_floats);

}  // namespace heirloom::model
