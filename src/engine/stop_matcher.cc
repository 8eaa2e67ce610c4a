#include "engine/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace heirloom::engine {

void check_stops(const std::vector<std::string>& stops) {
  for (std::size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty()) fail(ErrorKind::usage, "stop[{}] is an empty string; expected at least one character", i);
  }
}

std::string StopMatcher::push(std::string_view text) {
  if (matched()) return {};
  if (stops_.empty()) return std::string(text);
  pending_ += text;
  std::size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    const std::size_t at = pending_.find(stop);
    // The earliest one wins; of two at the same place the longer, which is the more specific.
    if (at < first || (at != std::string::npos && at == first && stop.size() > matched_.size())) {
      first = at;
      matched_ = stop;
    }
  }
  if (matched()) {
    std::string shown = pending_.substr(0, first);
    pending_.clear();
    return shown;
  }
  std::size_t held = 0;  // longest end of pending_ that begins a stop string
  for (const std::string& stop : stops_) {
    for (std::size_t length = std::min(stop.size() - 1, pending_.size()); length > held; --length) {
      if (pending_.compare(pending_.size() - length, length, stop, 0, length) == 0) {
        held = length;
        break;
      }
    }
  }
  std::string shown = pending_.substr(0, pending_.size() - held);
  pending_.erase(0, pending_.size() - held);
  return shown;
}

std::string StopMatcher::flush() { return std::exchange(pending_, {}); }

}  // namespace heirloom::engine
