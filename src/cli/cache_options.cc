#include "cli/cache_options.h"

#include "base/log.h"

namespace heirloom::cli {

void CacheOptions::apply(EngineOptions& options) const {
  if (!ram.empty()) options.cache_ram_bytes = parse_size(ram, "--cache-ram");
  if (!disk.empty()) options.cache_disk_bytes = parse_size(disk, "--cache-disk");
  options.cache_dir = dir;
  options.strip_volatile_lines = !keep_volatile_lines;
}

void add_cache_options(CLI::App& command, CacheOptions& options) {
  const std::string group = "Prefix cache";
  command.add_option("--cache-ram", options.ram, "memory for snapshots of processed prompts (default 1GiB; 0 = off)")->group(group);
  command.add_option("--cache-dir", options.dir, "folder where snapshots survive a restart")->group(group);
  command.add_option("--cache-disk", options.disk, "size of that folder at most (default 8GiB)")->group(group);
  command.add_flag("--keep-volatile-lines", options.keep_volatile_lines, "do not leave changing billing headers out of the prompt")->group(group);
}

void print_timings(const Json& report) {
  double total_ms = 0;
  for (const Json& row : report) total_ms += row.value("ms", 0.0);
  log::info("{:<20} {:>8} {:>10} {:>8} {:>8} {:>7}", "component", "calls", "ms", "MB", "GB/s", "share");
  for (const Json& row : report) {
    const double ms = row.value("ms", 0.0);
    log::info("{:<20} {:>8} {:>10.2f} {:>8.1f} {:>8.2f} {:>6.1f}%", row.value("component", ""), row.value("calls", 0), ms,
              row.value("bytes", 0.0) / 1e6, row.value("gb_s", 0.0), total_ms > 0 ? 100 * ms / total_ms : 0.0);
  }
}

}  // namespace heirloom::cli
