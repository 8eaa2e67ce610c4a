// Copies of a snapshot in host memory and back: what the disk tier writes and reads.
#pragma once

#include <functional>

#include "engine/disk_tier.h"
#include "engine/session_state.h"

namespace heirloom::engine {

/// Histories of the full pages and of the state, as HostState has them.
std::vector<std::uint64_t> histories_of(const Snapshot& snapshot);

/// Copies a snapshot out of the backend. Full page i is left empty where `skip_page(i)` is true. On a backend with host
/// memory any thread may call this while sessions go on (they write other slots); else the engine's thread.
HostState copy_to_host(const StatePool& pool, const Snapshot& snapshot, const std::function<bool(std::size_t)>& skip_page);

/// The snapshot in backend memory; all pages must be there. Engine's thread. Error{does_not_fit}.
SnapshotRef copy_from_host(StatePool& pool, const HostState& state);

}  // namespace heirloom::engine
