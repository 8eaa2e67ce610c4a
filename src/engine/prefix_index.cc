#include "engine/prefix_index.h"

#include <algorithm>

#include "base/check.h"

namespace heirloom::engine {
namespace {

std::size_t common(std::span<const Symbol> a, std::span<const Symbol> b) {
  const std::size_t limit = std::min(a.size(), b.size());
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(limit), b.begin()).first -
                                  a.begin());
}

}  // namespace

PrefixIndex::PrefixIndex() : root_(std::make_unique<Node>()) {}

// Paths can be thousands of nodes deep: taken apart level by level, not by recursion.
PrefixIndex::~PrefixIndex() {
  std::vector<std::unique_ptr<Node>> pending;
  pending.push_back(std::move(root_));
  while (!pending.empty()) {
    const std::unique_ptr<Node> node = std::move(pending.back());
    pending.pop_back();
    for (auto& [symbol, child] : node->children) pending.push_back(std::move(child));
  }
}

PrefixIndex::Match PrefixIndex::match(std::span<const Symbol> symbols) const {
  Match result;
  Node* node = root_.get();
  for (;;) {
    if (node->entry != nullptr) result.entries.push_back(node);
    result.length = node->depth;
    const std::span<const Symbol> rest = symbols.subspan(static_cast<std::size_t>(node->depth));
    const auto child = rest.empty() ? node->children.end() : node->children.find(rest.front());
    if (child == node->children.end()) {
      if (!node->children.empty()) result.known_next = node->children.begin()->first;
      return result;
    }
    Node* next = child->second.get();
    const std::size_t shared = common(rest, next->edge);
    if (shared < next->edge.size()) {
      result.length += static_cast<std::int64_t>(shared);
      result.known_next = next->edge[shared];
      return result;
    }
    node = next;
  }
}

PrefixIndex::Node& PrefixIndex::insert(std::span<const Symbol> prefix) {
  Node* node = root_.get();
  while (node->depth < static_cast<std::int64_t>(prefix.size())) {
    const std::span<const Symbol> rest = prefix.subspan(static_cast<std::size_t>(node->depth));
    auto& slot = node->children[rest.front()];
    if (!slot) {
      slot = std::make_unique<Node>();
      slot->edge.assign(rest.begin(), rest.end());
      slot->parent = node;
      slot->depth = static_cast<std::int64_t>(prefix.size());
      symbols_held_ += static_cast<std::int64_t>(rest.size());
      return *slot;
    }
    const std::size_t shared = common(rest, slot->edge);
    if (shared < slot->edge.size()) {  // split the edge
      auto upper = std::make_unique<Node>();
      upper->edge.assign(slot->edge.begin(), slot->edge.begin() + static_cast<std::ptrdiff_t>(shared));
      upper->parent = node;
      upper->depth = node->depth + static_cast<std::int64_t>(shared);
      slot->edge.erase(slot->edge.begin(), slot->edge.begin() + static_cast<std::ptrdiff_t>(shared));
      slot->parent = upper.get();
      upper->children.emplace(slot->edge.front(), std::move(slot));
      slot = std::move(upper);
    }
    node = slot.get();
  }
  return *node;
}

void PrefixIndex::erase(Node& node) {
  node.entry = nullptr;
  Node* at = &node;
  while (at->parent != nullptr && at->entry == nullptr) {
    Node* parent = at->parent;
    const Symbol key = at->edge.front();
    if (at->children.empty()) {
      symbols_held_ -= static_cast<std::int64_t>(at->edge.size());
      parent->children.erase(key);
      at = parent;
      continue;
    }
    if (at->children.size() == 1) {  // join the two edges
      std::unique_ptr<Node> child = std::move(at->children.begin()->second);
      child->edge.insert(child->edge.begin(), at->edge.begin(), at->edge.end());
      child->parent = parent;
      parent->children[key] = std::move(child);
    }
    return;
  }
}

std::vector<Symbol> PrefixIndex::path(const Node& node) {
  std::vector<Symbol> symbols(static_cast<std::size_t>(node.depth));
  for (const Node* at = &node; at->parent != nullptr; at = at->parent) {
    std::copy(at->edge.begin(), at->edge.end(), symbols.begin() + static_cast<std::ptrdiff_t>(at->parent->depth));
  }
  return symbols;
}

}  // namespace heirloom::engine
