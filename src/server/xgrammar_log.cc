#include "server/xgrammar_log.h"

#include <stdexcept>

#include "base/log.h"

namespace heirloom::server {
namespace {

thread_local XgrammarWarnings* g_capture = nullptr;

}  // namespace

XgrammarWarnings::XgrammarWarnings() : outer_(g_capture) { g_capture = this; }
XgrammarWarnings::~XgrammarWarnings() { g_capture = outer_; }

}  // namespace heirloom::server

// The hooks that xgrammar calls when built with XGRAMMAR_LOG_CUSTOMIZE.
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string& file, int lineno, const std::string& message);
void LogMessageImpl(const std::string& file, int lineno, int level, const std::string& message);

void LogFatalImpl(const std::string&, int, const std::string& message) { throw std::runtime_error(message); }

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  constexpr int kWarning = 2;
  if (level < kWarning) return;
  if (heirloom::server::g_capture != nullptr) {
    heirloom::server::g_capture->add(message);
  } else {
    heirloom::log::debug("xgrammar: {}", message);
  }
}

}  // namespace xgrammar
