#include "model/weight_reader.h"

#include <cmath>

#include "base/check.h"
#include "format/quant_blocks.h"
#include "model/tensor_names.h"

namespace heirloom::model {
namespace {

std::vector<std::uint64_t> dims(std::initializer_list<std::int64_t> values) {
  return std::vector<std::uint64_t>(values.begin(), values.end());
}

/// Shapes are compared by rows and columns: [hidden, 3, 14, 14] is a [hidden, 588] matrix, conv1d's [C, 1, 4] a [C, 4] one.
bool same_matrix(const TensorView& tensor, std::uint64_t rows, std::uint64_t cols) {
  if (tensor.elements() != rows * cols || tensor.shape.empty()) return false;
  return rows == 1 || tensor.shape.front() == rows;
}

ops::WeightData whole(const TensorView& tensor, std::int64_t experts, std::int64_t rows, std::int64_t cols) {
  return {tensor.name, tensor.type, experts, rows, cols, {{tensor.data.data(), experts * rows}}};
}

}  // namespace

WeightReader::WeightReader(Naming naming, const ModelConfig& config, std::shared_ptr<const TensorSource> text,
                           std::shared_ptr<const TensorSource> vision)
    : naming_(naming), config_(config), text_(std::move(text)), vision_(std::move(vision)) {
  // Qwen3_5ForCausalLM has "model.", the vision-language classes "model.language_model.".
  const bool nested = naming == Naming::hugging_face && text_->find("model.language_model.embed_tokens.weight") != nullptr;
  text_prefix_ = nested ? "model.language_model." : "model.";
}

std::string WeightReader::file_name(const std::string& name) const {
  if (naming_ == Naming::gguf) return name;
  const std::optional<HfName> theirs = hf_name(config_.family, name);
  HEIRLOOM_CHECK(theirs.has_value());
  return theirs->text ? text_prefix_ + theirs->name : theirs->name;
}

const TensorView* WeightReader::find_or_null(const std::string& name) const {
  const bool tower = name.starts_with("v.") || name.starts_with("mm.");
  const TensorSource* source = tower ? vision_.get() : text_.get();
  if (source == nullptr) return nullptr;
  if (naming_ == Naming::hugging_face && !hf_name(config_.family, name)) return nullptr;  // none in this family
  return source->find(file_name(name));
}

const TensorView& WeightReader::tensor(const std::string& name) const {
  const bool tower = name.starts_with("v.") || name.starts_with("mm.");
  HEIRLOOM_CHECK(!tower || vision_ != nullptr);
  return (tower ? vision_ : text_)->require(file_name(name));
}

bool WeightReader::has(const std::string& name) const {
  if (find_or_null(name) != nullptr) return true;
  if (name.find("_exps.") == std::string::npos || naming_ == Naming::gguf) return false;
  return text_->find(text_prefix_ + hf_stacked_expert_name(name)) != nullptr ||
         text_->find(text_prefix_ + hf_expert_name(name, 0)) != nullptr;
}

void WeightReader::refuse_shape(const TensorView& tensor, const std::vector<std::uint64_t>& expected) const {
  fail(ErrorKind::bad_file, "{}: {}: shape {}, the model's config asks for {}; the file and its config do not belong together",
       (vision_ && vision_->find(tensor.name) == &tensor ? vision_ : text_)->path().string(), tensor.name,
       shape_string(tensor.shape), shape_string(expected));
}

ops::WeightData WeightReader::matrix(const std::string& name, std::int64_t rows, std::int64_t cols) const {
  const TensorView& view = tensor(name);
  if (!same_matrix(view, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(cols))) {
    refuse_shape(view, dims({rows, cols}));
  }
  return whole(view, 1, rows, cols);
}

ops::WeightData WeightReader::matrix_rows(const std::string& name, std::int64_t first, std::int64_t rows,
                                          std::int64_t total_rows, std::int64_t cols) const {
  ops::WeightData data = matrix(name, total_rows, cols);
  const std::uint64_t stride = row_bytes(data.type, static_cast<std::uint64_t>(cols));
  data.rows = rows;
  data.slabs = {{data.slabs.front().data + stride * static_cast<std::uint64_t>(first), rows}};
  return data;
}

ops::WeightData WeightReader::experts(const std::string& name, std::int64_t experts, std::int64_t rows,
                                      std::int64_t cols) const {
  if (naming_ == Naming::gguf) {
    const TensorView& view = tensor(name);
    if (view.shape != dims({experts, rows, cols})) refuse_shape(view, dims({experts, rows, cols}));
    return whole(view, experts, rows, cols);
  }
  // Qwen3.5's releases stack the experts, gate rows before up rows; transformers 5 saves one tensor for each expert.
  if (const TensorView* stacked = text_->find(text_prefix_ + hf_stacked_expert_name(name))) {
    const bool down = name.find("ffn_down") != std::string::npos;
    const std::int64_t stacked_rows = down ? rows : 2 * rows;
    if (stacked->shape != dims({experts, stacked_rows, cols})) refuse_shape(*stacked, dims({experts, stacked_rows, cols}));
    if (down) return whole(*stacked, experts, rows, cols);
    ops::WeightData data{stacked->name, stacked->type, experts, rows, cols, {}};
    const std::uint64_t stride = row_bytes(stacked->type, static_cast<std::uint64_t>(cols));
    const std::int64_t offset = name.find("ffn_up") != std::string::npos ? rows : 0;
    for (std::int64_t e = 0; e < experts; ++e) {
      data.slabs.push_back({stacked->data.data() + stride * static_cast<std::uint64_t>(e * stacked_rows + offset), rows});
    }
    return data;
  }
  ops::WeightData data;
  for (std::int64_t e = 0; e < experts; ++e) {
    const TensorView& tensor = text_->require(text_prefix_ + hf_expert_name(name, e));
    if (tensor.shape != dims({rows, cols})) refuse_shape(tensor, dims({rows, cols}));
    if (e == 0) {
      data = {tensor.name, tensor.type, experts, rows, cols, {}};
    } else if (tensor.type != data.type) {
      fail(ErrorKind::bad_file, "{}: {} is {}, expert 0 is {}; all experts of a layer must have one type",
           text_->path().string(), tensor.name, dtype_name(tensor.type), dtype_name(data.type));
    }
    data.slabs.push_back({tensor.data.data(), rows});
  }
  return data;
}

std::vector<float> WeightReader::values(const std::string& name, std::int64_t count) const {
  const TensorView& view = tensor(name);
  if (view.elements() != static_cast<std::uint64_t>(count)) refuse_shape(view, dims({count}));
  std::vector<float> result(static_cast<std::size_t>(count));
  dequantize_row(view.type, view.data.data(), result.data(), result.size());
  if (naming_ == Naming::hugging_face) {
    const HfTransform transform = hf_name(config_.family, name)->transform;
    for (float& value : result) {
      if (transform == HfTransform::add_one) value = 1.0f + value;
      if (transform == HfTransform::neg_exp) value = -std::exp(value);
    }
  }
  return result;
}

std::unique_ptr<ops::Weight> WeightReader::load(ops::Backend& backend, const ops::WeightData& data) const {
  if (!can_dequantize(data.type)) {
    fail(ErrorKind::bad_file, "{}: {}: type {} holds no weights; expected a float or quantised type",
         text_->path().string(), data.name, dtype_name(data.type));
  }
  const auto cols = static_cast<std::uint64_t>(data.cols);
  if (cols % dtype_info(data.type).block_size != 0) {
    fail(ErrorKind::bad_file, "{}: {}: {} columns are not a whole number of {} blocks", text_->path().string(), data.name,
         cols, dtype_name(data.type));
  }
  std::unique_ptr<ops::Weight> weight = backend.load_weight(data);
  release(data);
  return weight;
}

void WeightReader::release(const ops::WeightData& data) const {
  const auto let_go = [&](const std::string& name) {
    for (const TensorSource* source : {text_.get(), vision_.get()}) {
      if (source == nullptr) continue;
      if (const TensorView* view = source->find(name)) source->release(*view);
    }
  };
  let_go(data.name);
  // With one tensor for each expert, the name is the first one's.
  constexpr std::string_view kFirst = ".experts.0.";
  const std::size_t at = data.name.find(kFirst);
  if (at == std::string::npos) return;
  for (std::int64_t e = 1; e < config_.text.num_experts; ++e) {
    let_go(std::string(data.name).replace(at, kFirst.size(), ".experts." + std::to_string(e) + "."));
  }
}

ops::Buffer WeightReader::load_values(ops::Backend& backend, const std::string& name, std::int64_t count) const {
  const std::vector<float> host = values(name, count);
  return backend.make_buffer(std::span<const float>(host));
}

}  // namespace heirloom::model
