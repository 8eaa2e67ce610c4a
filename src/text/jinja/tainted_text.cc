#include "text/jinja/tainted_text.h"

#include <algorithm>

namespace heirloom::text::jinja {
namespace {

/// First range that ends after `position`.
auto first_after(const std::vector<Text::Range>& ranges, std::size_t position) {
  return std::partition_point(ranges.begin(), ranges.end(), [&](const auto& r) { return r.end <= position; });
}

}  // namespace

bool Text::any_tainted(std::size_t begin, std::size_t end) const noexcept {
  const auto it = first_after(tainted_, begin);
  return begin < end && it != tainted_.end() && it->begin < end;
}

Text Text::slice(std::size_t begin, std::size_t end) const {
  Text out;
  out.append(*this, begin, end);
  return out;
}

Text Text::repeated(std::size_t times) const {
  Text out;
  const std::size_t total = size() * times;
  out.bytes_.reserve(total);
  if (total) out.append(*this);
  while (out.size() < total) {  // doubling: few large copies
    const Text half = out;
    out.append(half, 0, std::min(half.size(), total - half.size()));
  }
  return out;
}

void Text::append(std::string_view bytes, bool tainted) {
  if (bytes.empty()) return;
  const std::size_t begin = bytes_.size();
  bytes_ += bytes;
  if (!tainted) return;
  if (!tainted_.empty() && tainted_.back().end == begin) {
    tainted_.back().end = bytes_.size();
  } else {
    tainted_.push_back({begin, bytes_.size()});
  }
}

void Text::append(const Text& other, std::size_t begin, std::size_t end) {
  const std::size_t base = bytes_.size();
  bytes_.append(other.bytes_, begin, end - begin);
  for (auto it = first_after(other.tainted_, begin); it != other.tainted_.end() && it->begin < end; ++it) {
    const Range range{base + std::max(it->begin, begin) - begin, base + std::min(it->end, end) - begin};
    if (!tainted_.empty() && tainted_.back().end == range.begin) {
      tainted_.back().end = range.end;
    } else {
      tainted_.push_back(range);
    }
  }
}

}  // namespace heirloom::text::jinja
