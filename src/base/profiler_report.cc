#include "base/profiler_report.h"

namespace heirloom {

OrderedJson timings_report(const Profiler& profiler) {
  OrderedJson report = OrderedJson::array();
  for (const Profiler::Entry& entry : profiler.entries()) {
    const double ms = static_cast<double>(entry.nanoseconds) * 1e-6;
    report.push_back({{"component", std::string(entry.name)},
                      {"calls", entry.calls},
                      {"ms", ms},
                      {"bytes", entry.bytes},
                      {"gb_s", ms > 0 ? static_cast<double>(entry.bytes) / (ms * 1e6) : 0.0}});
  }
  return report;
}

}  // namespace heirloom
