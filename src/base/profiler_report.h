// The profiler's entries as rows for people and programs.
#pragma once

#include "base/json.h"
#include "base/profiler.h"

namespace heirloom {

/// One row per component, in the order of first use: {"component", "calls", "ms", "bytes", "gb_s"}.
OrderedJson timings_report(const Profiler& profiler);

}  // namespace heirloom
