// Reads a model's tensors by our name for them (GGUF's names, see tensor_names.h), from GGUF or safetensors, checked against
// the shapes that the config asks for. What differs between the two is settled here: HF stores norms minus one, A as a
// logarithm, experts one by one or stacked; GGUF stores effective values.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "format/tensor_view.h"
#include "model/config.h"
#include "ops/backend.h"

namespace heirloom::model {

class WeightReader {
 public:
  enum class Naming { gguf, hugging_face };

  /// `text` holds the language model; `vision` the tower (may be the same object, or null).
  WeightReader(Naming naming, const ModelConfig& config, std::shared_ptr<const TensorSource> text,
               std::shared_ptr<const TensorSource> vision);

  bool has(const std::string& name) const;

  /// The tensor as it is in the file. Error{bad_file} if missing.
  const TensorView& tensor(const std::string& name) const;
  /// A matrix of [rows, cols]; Error{bad_file} naming the tensor, its shape and the expected one.
  ops::WeightData matrix(const std::string& name, std::int64_t rows, std::int64_t cols) const;
  /// Rows [first, first + rows) of a [total_rows, cols] matrix.
  ops::WeightData matrix_rows(const std::string& name, std::int64_t first, std::int64_t rows, std::int64_t total_rows,
                              std::int64_t cols) const;
  /// blk.N.ffn_{gate,up,down}_exps.weight as `experts` matrices of [rows, cols].
  ops::WeightData experts(const std::string& name, std::int64_t experts, std::int64_t rows, std::int64_t cols) const;
  /// Effective values as float32 (norms with the one added, A as -exp(A_log)); any shape whose elements number `count`.
  std::vector<float> values(const std::string& name, std::int64_t count) const;

  /// Lets go of the file's pages.
  void release(const ops::WeightData& data) const;
  /// Packs a weight and releases it.
  std::unique_ptr<ops::Weight> load(ops::Backend& backend, const ops::WeightData& data) const;
  ops::Buffer load_values(ops::Backend& backend, const std::string& name, std::int64_t count) const;

  Naming naming() const { return naming_; }
  /// The name of `name` in the file.
  std::string file_name(const std::string& name) const;

 private:
  const TensorView* find_or_null(const std::string& name) const;
  [[noreturn]] void refuse_shape(const TensorView& tensor, const std::vector<std::uint64_t>& expected) const;

  Naming naming_;
  const ModelConfig& config_;
  std::shared_ptr<const TensorSource> text_, vision_;
  std::string text_prefix_;  // "model.language_model." or "model."
};

}  // namespace heirloom::model
