// What `bench --study` prints.
#pragma once

#include <string>

#include "base/json.h"
#include "tools/study/study.h"

namespace heirloom::cli {

/// Parts with their rows as text, and the sources of the figures beside them.
std::string study_table(const tools::StudyReport& report);
/// {"machine": {"cpu", "gpu"}, "parts": [{"name", "title", "rows": [{"what", "unit", "min", "median", "max", "samples",
/// "times_better", "note"}], "skipped": [...], "papers"}], "sources"}
Json study_json(const tools::StudyReport& report);

}  // namespace heirloom::cli
