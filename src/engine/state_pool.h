// Memory of sequence states in a backend: KV pages (64 tokens of every full-attention layer) and state blocks (the
// recurrent and conv state of every Gated DeltaNet layer). Owns allocation and byte accounting; what the bytes mean is
// session_state.h's. Freed pages and blocks are kept for the next user: a running server neither grows nor shrinks.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "ops/backend.h"

namespace heirloom::engine {

class StatePool;

/// A KV page, [num_attention_layers, 2 (K, V), num_kv_heads, 64, head_dim] of the state's kv_type. Slots once written are
/// never changed while somebody else shares the page; see SessionState.
struct Page {
  std::byte* data = nullptr;  // backend memory
  std::uint32_t cache_references = 0;  // by how many cached snapshots; kept by SnapshotStore for its accounting
  std::uint64_t history = 0;           // of the session when it last wrote here; see SessionState
};
using PageRef = std::shared_ptr<Page>;

/// Recurrent and conv state of all Gated DeltaNet layers at one position.
struct StateBlock {
  float* conv = nullptr;       // StateShape::conv_floats()
  float* recurrent = nullptr;  // StateShape::recurrent_floats()
};
using StateRef = std::shared_ptr<StateBlock>;

/// Allocates on the thread that owns the backend; references may be dropped on any thread. Must outlive them.
class StatePool {
 public:
  StatePool(ops::Backend& backend, const ops::StateShape& shape);
  StatePool(const StatePool&) = delete;
  StatePool& operator=(const StatePool&) = delete;
  ~StatePool();

  /// Uninitialised memory. Error{does_not_fit} from the backend.
  PageRef new_page();
  StateRef new_state();

  /// For idle moments, on the backend's thread: takes one more slab from the OS and writes to it, unless `ready_bytes` are free
  /// already or `most_bytes` reserved; false if so. New memory costs 2 to 13 us per 4 KiB at its first use (in a virtual machine),
  /// many times what copying a state into it takes. Does nothing where states are not in host memory. Error{does_not_fit}.
  bool make_ready(std::uint64_t ready_bytes, std::uint64_t most_bytes);

  ops::Backend& backend() const { return backend_; }
  const ops::StateShape& shape() const { return shape_; }
  std::size_t page_bytes() const { return page_bytes_; }
  std::size_t state_bytes() const { return state_bytes_; }
  std::uint64_t bytes_in_use() const;    // referenced pages and blocks
  std::uint64_t bytes_reserved() const;  // allocated from the backend

 private:
  struct FreeList {
    mutable std::mutex mutex;
    std::vector<void*> items;
    std::uint64_t outstanding = 0;
  };
  void* take(FreeList& list, std::size_t item_bytes);
  ops::Buffer& add_slab(FreeList& list, std::size_t item_bytes);
  static void give_back(FreeList& list, void* item);

  ops::Backend& backend_;
  ops::StateShape shape_;
  std::size_t page_bytes_, state_bytes_;
  std::vector<ops::Buffer> slabs_;
  FreeList pages_, states_;
};

}  // namespace heirloom::engine
