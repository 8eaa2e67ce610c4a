// Catches what xgrammar would print: while a capture is alive, warnings of this thread go into it.
#pragma once

#include <string>
#include <vector>

namespace heirloom::server {

class XgrammarWarnings {
 public:
  XgrammarWarnings();
  ~XgrammarWarnings();
  XgrammarWarnings(const XgrammarWarnings&) = delete;
  XgrammarWarnings& operator=(const XgrammarWarnings&) = delete;

  const std::vector<std::string>& messages() const { return messages_; }
  void add(const std::string& message) { messages_.push_back(message); }

 private:
  std::vector<std::string> messages_;
  XgrammarWarnings* outer_;
};

}  // namespace heirloom::server
