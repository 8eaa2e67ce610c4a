#include "model/tap_emitter.h"

#include <algorithm>

namespace heirloom::model {
namespace {

std::size_t count_of(const std::vector<std::int64_t>& shape) {
  std::size_t count = 1;
  for (const std::int64_t n : shape) count *= static_cast<std::size_t>(n);
  return count;
}

}  // namespace

std::vector<float> TapEmitter::fetch(const float* device, const std::vector<std::int64_t>& shape) {
  std::vector<float> values(count_of(shape));
  backend_.download(values.data(), device, values.size() * sizeof(float));
  return values;
}

void TapEmitter::floats(const std::string& name, const float* device, const std::vector<std::int64_t>& shape) {
  if (wants(name)) taps_->floats(name, shape, fetch(device, shape));
}

void TapEmitter::ints(const std::string& name, const std::int32_t* device, const std::vector<std::int64_t>& shape) {
  if (!wants(name)) return;
  std::vector<std::int32_t> values(count_of(shape));
  backend_.download(values.data(), device, values.size() * sizeof(std::int32_t));
  taps_->ints(name, shape, values);
}

void TapEmitter::host_ints(const std::string& name, std::span<const std::int32_t> values,
                           const std::vector<std::int64_t>& shape) {
  if (wants(name)) taps_->ints(name, shape, values);
}

void TapEmitter::host_floats(const std::string& name, std::span<const float> values,
                             const std::vector<std::int64_t>& shape) {
  if (wants(name)) taps_->floats(name, shape, values);
}

void TapEmitter::value_heads(const std::string& name, const float* device, const std::vector<std::int64_t>& shape,
                             const TextConfig& config, std::int64_t row_floats, std::int64_t head_floats) {
  if (!wants(name)) return;
  std::vector<float> values = fetch(device, shape);
  if (config.v_heads_tiled) untile_value_heads(values, config, row_floats, head_floats);
  taps_->floats(name, shape, values);
}

void untile_value_heads(std::span<float> values, const TextConfig& config, std::int64_t row_floats,
                        std::int64_t head_floats) {
  const std::int64_t nk = config.linear_num_k_heads;
  const std::int64_t ratio = config.linear_num_v_heads / nk;
  const std::int64_t head_part = config.linear_num_v_heads * head_floats;
  std::vector<float> grouped(static_cast<std::size_t>(head_part));
  for (std::int64_t row = 0; row < static_cast<std::int64_t>(values.size()) / row_floats; ++row) {
    float* heads = values.data() + row * row_floats + (row_floats - head_part);
    for (std::int64_t j = 0; j < nk; ++j) {
      for (std::int64_t i = 0; i < ratio; ++i) {
        std::copy_n(heads + (i * nk + j) * head_floats, head_floats, grouped.data() + (j * ratio + i) * head_floats);
      }
    }
    std::copy(grouped.begin(), grouped.end(), heads);
  }
}

}  // namespace heirloom::model
