// The one exception type of the engine. Load, user, device and capacity failures throw Error; each layer may add
// context with `wrap` while it passes. Kinds map to exit codes (here) and HTTP status (server/) in one table each.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace heirloom {

enum class ErrorKind {
  internal,      // our own bug, or a broken invariant
  usage,         // wrong command line or wrong request
  bad_file,      // broken, foreign or unsupported file
  does_not_fit,  // memory or context exceeded; the message says what would fit
  device,        // driver, GPU or instruction-set failure
  cancelled,     // interrupted by the user or by a client that went away
};

/// One sentence: what was found, what was expected, what to do.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }
  /// The same error with `context: ` before its message.
  Error wrap(std::string_view context) const { return Error(kind_, std::string(context) + ": " + what()); }

 private:
  ErrorKind kind_;
};

/// Exit code of the command line for an error kind (0 is success).
constexpr int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::internal: return 1;
    case ErrorKind::usage: return 2;
    case ErrorKind::bad_file: return 3;
    case ErrorKind::does_not_fit: return 4;
    case ErrorKind::device: return 5;
    case ErrorKind::cancelled: return 130;
  }
  return 1;
}

}  // namespace heirloom
