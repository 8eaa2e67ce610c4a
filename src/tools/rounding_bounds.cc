#include "tools/rounding_bounds.h"

#include <cmath>

#include "base/check.h"
#include "base/json.h"
#include "base/mapped_file.h"

namespace heirloom::tools {

RoundingBounds::RoundingBounds(const std::filesystem::path& file) {
  const nlohmann::json root = parse_sorted_json(read_text_file(file), file.string());
  const auto refuse = [&](const std::string& where) {
    fail(ErrorKind::bad_file, "{}: {}; expected an object of dumps, each an object of stages with [max_abs, rel_l2], both finite and not negative",
         file.string(), where);
  };
  if (!root.is_object()) refuse("no object");
  for (const auto& [dump, stages] : root.items()) {
    if (!stages.is_object()) refuse("\"" + dump + "\" is no object");
    for (const auto& [stage, values] : stages.items()) {
      if (!values.is_array() || values.size() != 2 || !values[0].is_number() || !values[1].is_number()) {
        refuse("\"" + stage + "\" of \"" + dump + "\" is no pair of numbers");
      }
      const RoundingBound bound{values[0].get<double>(), values[1].get<double>()};
      if (!(bound.max_abs >= 0 && bound.rel_l2 >= 0 && std::isfinite(bound.max_abs) && std::isfinite(bound.rel_l2))) {
        refuse("\"" + stage + "\" of \"" + dump + "\" is out of range");
      }
      dumps_[dump][stage] = bound;
    }
  }
}

const RoundingBound* RoundingBounds::find(const std::string& dump, const std::string& stage) const {
  const auto stages = dumps_.find(dump);
  if (stages == dumps_.end()) return nullptr;
  const auto found = stages->second.find(stage);
  return found == stages->second.end() ? nullptr : &found->second;
}

}  // namespace heirloom::tools
