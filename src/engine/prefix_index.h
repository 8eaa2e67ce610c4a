// A radix tree over prompt symbols: finds the deepest cached states below any prompt and where it leaves the known paths.
// Owns paths and entries; what an entry is worth and whether it lies in memory or on disk is snapshot_store.h's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/prompt.h"

namespace heirloom::engine {

struct CacheEntry;  // snapshot_store.h

class PrefixIndex {
 public:
  struct Node {
    std::vector<Symbol> edge;  // from the parent's depth to depth
    Node* parent = nullptr;
    std::int64_t depth = 0;
    std::map<Symbol, std::unique_ptr<Node>> children;  // by the first symbol of their edge
    CacheEntry* entry = nullptr;  // not owned
  };
  struct Match {
    std::int64_t length = 0;           // symbols shared with some known path
    std::vector<Node*> entries;        // nodes with an entry at depth <= length on this path, shallow to deep
    std::optional<Symbol> known_next;  // what a known path has at `length`, where the prompt differs or ends
  };

  PrefixIndex();
  ~PrefixIndex();

  Match match(std::span<const Symbol> symbols) const;
  /// The node at exactly this prefix, made if absent.
  Node& insert(std::span<const Symbol> prefix);
  /// Removes the node's entry and every node that then leads nowhere.
  void erase(Node& node);
  /// The whole prefix of a node.
  static std::vector<Symbol> path(const Node& node);
  /// Symbols held by all edges, for accounting.
  std::int64_t symbols_held() const { return symbols_held_; }

 private:
  std::unique_ptr<Node> root_;
  std::int64_t symbols_held_ = 0;
};

}  // namespace heirloom::engine
