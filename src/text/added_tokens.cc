#include "text/added_tokens.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "text/utf8.h"

namespace heirloom::text {

AddedTokenTrie::AddedTokenTrie(const std::vector<AddedToken>& tokens) {
  std::vector<std::size_t> order(tokens.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return tokens[a].content < tokens[b].content; });
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::string& content = tokens[order[i]].content;
    if (content.empty()) fail(ErrorKind::bad_file, "added token {} is empty", tokens[order[i]].id);
    if (content.size() > kMaxLength) {
      fail(ErrorKind::bad_file, "added token {} is {} bytes long, at most {} are supported", tokens[order[i]].id,
           content.size(), kMaxLength);
    }
    if (!is_valid_utf8(content)) {  // it could match inside a character and leave half of it to the splitter
      fail(ErrorKind::bad_file, "added token {} is not valid UTF-8", tokens[order[i]].id);
    }
    if (i && tokens[order[i - 1]].content == content) {
      fail(ErrorKind::bad_file, "added tokens {} and {} have the same text", tokens[order[i - 1]].id, tokens[order[i]].id);
    }
    starts_[static_cast<unsigned char>(content[0])] = true;
  }
  // Breadth first: the tokens below a node are a range of the sorted order that shares `depth` bytes.
  struct Range {
    std::uint32_t node;
    std::size_t begin, end, depth;
  };
  nodes_.push_back({});
  std::vector<Range> queue{{0, 0, order.size(), 0}};
  for (std::size_t q = 0; q < queue.size(); ++q) {
    auto [node, begin, end, depth] = queue[q];
    if (begin < end && tokens[order[begin]].content.size() == depth) {
      nodes_[node].token = static_cast<std::int32_t>(order[begin++]);
    }
    nodes_[node].first_child = static_cast<std::uint32_t>(nodes_.size());
    while (begin < end) {
      const char byte = tokens[order[begin]].content[depth];
      std::size_t next = begin;
      while (next < end && tokens[order[next]].content[depth] == byte) ++next;
      queue.push_back({static_cast<std::uint32_t>(nodes_.size()), begin, next, depth + 1});
      nodes_.push_back({.byte = static_cast<unsigned char>(byte)});
      ++nodes_[node].children;
      begin = next;
    }
  }
}

std::size_t AddedTokenTrie::next_candidate(std::string_view text, std::size_t from) const noexcept {
  while (from < text.size() && !starts_[static_cast<unsigned char>(text[from])]) ++from;
  return from;
}

std::uint32_t AddedTokenTrie::child(std::uint32_t node, unsigned char byte) const noexcept {
  if (nodes_.empty()) return 0;
  const auto first = nodes_.begin() + nodes_[node].first_child;
  const auto last = first + nodes_[node].children;
  const auto it = std::lower_bound(first, last, byte, [](const Node& n, unsigned char b) { return n.byte < b; });
  return it != last && it->byte == byte ? static_cast<std::uint32_t>(it - nodes_.begin()) : 0;
}

}  // namespace heirloom::text
