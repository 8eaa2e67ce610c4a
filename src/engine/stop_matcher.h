// Finds stop strings in streamed text. Text that might be the beginning of a stop string is held back until it is known
// not to be, so that no part of a stop string is ever shown.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace heirloom::engine {

class StopMatcher {
 public:
  /// `stops` must not hold empty strings (check_stops).
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// Adds text; returns what may be shown now. After a match nothing more is returned.
  std::string push(std::string_view text);
  /// End of the stream without a match: the text still held back.
  std::string flush();
  bool matched() const { return !matched_.empty(); }
  const std::string& match() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string pending_;
  std::string matched_;
};

/// Throws Error{usage} for an empty stop string.
void check_stops(const std::vector<std::string>& stops);

}  // namespace heirloom::engine
