// Log lines on stderr, one level for the process. stdout belongs to answers and JSON.
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace heirloom::log {

enum class Level { debug, info, warning, error, off };

void set_level(Level level);
Level level();
/// "debug", "info", "warning", "error", "off"; throws Error{usage} on anything else.
Level parse_level(std::string_view name);
/// Writes one whole line, atomically with respect to other threads.
void write(Level level, std::string_view message);

template <typename... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  if (level() <= Level::debug) write(Level::debug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  if (level() <= Level::info) write(Level::info, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  if (level() <= Level::warning) write(Level::warning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  if (level() <= Level::error) write(Level::error, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace heirloom::log
