// How far the reference implementation itself moves when the operands of its products are rounded to bfloat16, stage by stage: what
// `verify --gemm bf16` judges by. Files: NAME.json as tests/golden/rounding/make_rounding.py writes them,
// {dump: {stage: [max_abs, rel_l2]}}, the largest of many realisations of the rounding.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace heirloom::tools {

struct RoundingBound {
  double max_abs = 0, rel_l2 = 0;  // as in StageResult
};

class RoundingBounds {
 public:
  /// A stage may be this many times as far from the reference as rounding moved the reference.
  static constexpr double kFactor = 2;

  RoundingBounds() = default;  // none: every stage is held to the tolerance
  /// Error{bad_file}: what is wrong where.
  explicit RoundingBounds(const std::filesystem::path& file);

  /// Null where rounding does not move the stage, or the file does not know it.
  const RoundingBound* find(const std::string& dump, const std::string& stage) const;

 private:
  std::map<std::string, std::map<std::string, RoundingBound>> dumps_;
};

}  // namespace heirloom::tools
