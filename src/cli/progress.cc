#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

namespace heirloom::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPatience(2000), kRefresh(100);
constexpr int kWidth = 30;

struct Bar {
  Clock::time_point start = Clock::now(), last = start;
  bool shown = false;
};

}  // namespace

std::function<void(double, std::string_view)> progress_bar() {
  if (::isatty(STDERR_FILENO) == 0) return {};
  auto bar = std::make_shared<Bar>();
  return [bar](double fraction, std::string_view what) {
    const Clock::time_point now = Clock::now();
    if (fraction >= 1) {
      if (bar->shown) std::fputs("\r\x1b[K", stderr);
      *bar = Bar{};  // the next piece of work starts afresh
      return;
    }
    if (now - bar->start < kPatience || now - bar->last < kRefresh) return;
    bar->last = now;
    bar->shown = true;
    const int filled = static_cast<int>(std::clamp(fraction, 0.0, 1.0) * kWidth);
    const double elapsed = std::chrono::duration<double>(now - bar->start).count();
    const std::string line =
        fmt::format("\r{} [{}{}] {:3.0f} %  {:.0f} s left\x1b[K", what, std::string(static_cast<std::size_t>(filled), '#'),
                    std::string(static_cast<std::size_t>(kWidth - filled), '.'), fraction * 100,
                    fraction > 0 ? elapsed / fraction * (1 - fraction) : 0.0);
    std::fwrite(line.data(), 1, line.size(), stderr);
  };
}

}  // namespace heirloom::cli
