// A string value that remembers which of its bytes came from the request. The template engine carries these ranges through
// every operation, so that a rendered prompt can say which parts the template itself wrote (text/prompt_segment.h).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heirloom::text::jinja {

class Text {
 public:
  struct Range {
    std::size_t begin, end;  // bytes
  };

  Text() = default;
  explicit Text(std::string bytes, bool tainted = false) : bytes_(std::move(bytes)) {
    if (tainted && !bytes_.empty()) tainted_.push_back({0, bytes_.size()});
  }

  const std::string& str() const noexcept { return bytes_; }
  std::size_t size() const noexcept { return bytes_.size(); }
  bool empty() const noexcept { return bytes_.empty(); }
  const std::vector<Range>& tainted() const noexcept { return tainted_; }  // ascending, apart, never empty ranges
  bool any_tainted(std::size_t begin, std::size_t end) const noexcept;

  /// Bytes [begin, end) with their taint; begin <= end <= size().
  Text slice(std::size_t begin, std::size_t end) const;

  void append(std::string_view bytes, bool tainted);
  void append(const Text& other) { append(other, 0, other.size()); }
  void append(const Text& other, std::size_t begin, std::size_t end);

  /// This text `times` times over.
  Text repeated(std::size_t times) const;

  /// Markup (the `safe` and `escape` filters): the `+` operator escapes what is added to it.
  bool markup = false;

 private:
  std::string bytes_;
  std::vector<Range> tainted_;
};

}  // namespace heirloom::text::jinja
