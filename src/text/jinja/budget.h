// What a render may cost. Every step and every byte a template makes is charged, so a hostile template ends with an
// error after bounded time and memory, never in a hang or an exhausted machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"

namespace heirloom::text::jinja {

/// Errors that a template or its input causes: wrong types, raise_exception, exceeded limits.
template <typename... Args>
[[noreturn]] void template_fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::usage, fmt::format(format, std::forward<Args>(args)...));
}

class Budget {
 public:
  /// `input_bytes`: size of the data given to the render; real templates copy it a few times.
  explicit Budget(std::size_t input_bytes) : left_(kBase + static_cast<std::int64_t>(input_bytes) * kPerInputByte) {}

  static constexpr std::size_t kMaxTextBytes = std::size_t{64} << 20;  // of one string, and of the output

  void step() { spend(1); }
  /// Bytes looked at, compared or searched.
  void scan(std::size_t bytes) { spend(static_cast<std::int64_t>(bytes / 64)); }
  /// Bytes about to be made; call before making them.
  void make_text(std::size_t bytes) {
    if (bytes > kMaxTextBytes) template_fail("the chat template makes a text of more than {} MiB", kMaxTextBytes >> 20);
    spend(static_cast<std::int64_t>(bytes / 8) + 1);
  }
  /// Elements of a container about to be made.
  void make_items(std::size_t count) {
    if (count > kMaxTextBytes) template_fail("the chat template makes a list of {} elements", count);
    spend(static_cast<std::int64_t>(count) * 4 + 1);
  }

 private:
  // A step takes about 100 ns; one unit stands for 8 bytes made: half a second and 40 MB at most beyond what the input
  // needs. A published template spends some hundred units on a message.
  static constexpr std::int64_t kBase = 5'000'000;
  static constexpr std::int64_t kPerInputByte = 16;

  void spend(std::int64_t units) {
    left_ -= units;
    if (left_ < 0) template_fail("the chat template takes too long or makes too much text; it is broken or hostile");
  }
  std::int64_t left_;
};

}  // namespace heirloom::text::jinja
