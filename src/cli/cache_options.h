// Options of the prefix cache, shared by run, chat and serve.
#pragma once

#include "cli/command_options.h"

namespace heirloom::cli {

struct CacheOptions {
  std::string ram, dir, disk;
  bool keep_volatile_lines = false;

  void apply(EngineOptions& options) const;
};

void add_cache_options(CLI::App& command, CacheOptions& options);

/// The --timings table on stderr, from the rows of base/profiler_report.h.
void print_timings(const Json& report);

}  // namespace heirloom::cli
