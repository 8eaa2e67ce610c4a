// Memory of machines with several sockets: which nodes there are, and pages spread over all of them, so that a reader that is close to
// one socket (a GPU's copy engine) or to all of them (threads that share the work) draws on every node's bandwidth.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace heirloom {

/// "0-1,3" -> {0, 1, 3}, as the kernel lists nodes; what is not such a list ends the reading. At most 1,024 nodes.
std::vector<int> parse_node_list(std::string_view text);

/// Nodes with memory that this process may allocate on, ascending; {} where the kernel tells nothing.
std::vector<int> memory_nodes();

/// Has the pages of [data, data + bytes), none of them touched yet, come from `nodes` in turn. `data` is aligned to pages. False, and
/// pages come from the node of the thread that touches them first, where the kernel refuses (containers often do).
bool interleave_pages(void* data, std::size_t bytes, std::span<const int> nodes);

}  // namespace heirloom
