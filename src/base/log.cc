#include "base/log.h"

#include <atomic>
#include <cstdio>
#include <string>

#include "base/check.h"

namespace heirloom::log {
namespace {

std::atomic<Level> g_level{Level::info};

}  // namespace

void set_level(Level level) { g_level.store(level, std::memory_order_relaxed); }

Level level() { return g_level.load(std::memory_order_relaxed); }

Level parse_level(std::string_view name) {
  if (name == "debug") return Level::debug;
  if (name == "info") return Level::info;
  if (name == "warning") return Level::warning;
  if (name == "error") return Level::error;
  if (name == "off") return Level::off;
  fail(ErrorKind::usage, "--log-level {}: expected debug, info, warning, error or off", name);
}

void write(Level level, std::string_view message) {
  std::string line;
  if (level == Level::debug) line = "debug: ";
  if (level == Level::warning) line = "warning: ";
  if (level == Level::error) line = "error: ";
  line += message;
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);  // stdio locks the stream for one call
}

}  // namespace heirloom::log
