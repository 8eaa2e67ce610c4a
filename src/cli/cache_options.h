// Options of the prefix cache, shared by run, chat and serve.
#pragma once

#include "base/profiler.h"
#include "cli/command_options.h"

namespace heirloom::cli {

struct CacheOptions {
  std::string ram, dir, disk;
  bool keep_volatile_lines = false;

  void apply(EngineOptions& options) const;
};

void add_cache_options(CLI::App& command, CacheOptions& options);

/// One row per component: {"component", "calls", "ms", "bytes", "gb_s"}, as Engine::timings_report gives it.
Json timings_json(const Profiler& profiler);
/// The --timings table on stderr.
void print_timings(const Json& report);

}  // namespace heirloom::cli
