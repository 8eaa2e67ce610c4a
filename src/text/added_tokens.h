// The added tokens of a tokenizer (control tokens such as <|im_end|>, and plain ones such as <think>): a trie that finds
// the leftmost longest one in a text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace heirloom::text {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool special = false;     // a control token: never made from untrusted text
  bool normalized = false;  // looked for after NFC instead of before
};

class AddedTokenTrie {
 public:
  AddedTokenTrie() = default;
  /// Indexes into `tokens`; contents must be unique, non-empty and at most kMaxLength bytes.
  explicit AddedTokenTrie(const std::vector<AddedToken>& tokens);

  static constexpr std::size_t kMaxLength = 256;

  bool empty() const noexcept { return nodes_.size() <= 1; }
  /// Position of the next byte at or after `from` that can start a token; text.size() if none.
  std::size_t next_candidate(std::string_view text, std::size_t from) const noexcept;
  /// Calls visit(token index, length) for each token that `text` has at `at`, shortest first.
  template <typename Visit>
  void matches(std::string_view text, std::size_t at, Visit&& visit) const {
    std::uint32_t node = 0;
    for (std::size_t i = at; i < text.size(); ++i) {
      node = child(node, static_cast<unsigned char>(text[i]));
      if (node == 0) return;
      if (nodes_[node].token >= 0) visit(static_cast<std::size_t>(nodes_[node].token), i + 1 - at);
    }
  }

 private:
  struct Node {
    std::uint32_t first_child = 0;
    std::uint16_t children = 0;
    unsigned char byte = 0;
    std::int32_t token = -1;
  };
  std::uint32_t child(std::uint32_t node, unsigned char byte) const noexcept;

  std::vector<Node> nodes_;  // children of a node are adjacent and sorted by byte; node 0 is the root
  bool starts_[256] = {};
};

}  // namespace heirloom::text
