#include "base/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string>

namespace heirloom {
namespace {

constexpr int kMostNodes = 1024;

}  // namespace

std::vector<int> parse_node_list(std::string_view text) {
  std::vector<int> nodes;
  const char *at = text.data(), *end = at + text.size();
  while (at < end) {
    int first = 0;
    auto parsed = std::from_chars(at, end, first);
    if (parsed.ec != std::errc()) break;
    int last = first;
    if (parsed.ptr < end && *parsed.ptr == '-') {
      parsed = std::from_chars(parsed.ptr + 1, end, last);
      if (parsed.ec != std::errc()) break;
    }
    for (int node = std::max(first, 0); node <= std::min(last, kMostNodes - 1); ++node) nodes.push_back(node);
    if (parsed.ptr == end || *parsed.ptr != ',') break;
    at = parsed.ptr + 1;
  }
  return nodes;
}

std::vector<int> memory_nodes() {
  std::string line;
  std::ifstream with_memory("/sys/devices/system/node/has_memory");
  if (!std::getline(with_memory, line)) return {};
  std::vector<int> nodes = parse_node_list(line);
  std::ifstream status("/proc/self/status");
  for (constexpr std::string_view kKey = "Mems_allowed_list:"; std::getline(status, line);) {
    if (!line.starts_with(kKey)) continue;
    const std::size_t list = line.find_first_not_of(" \t", kKey.size());
    const std::vector<int> allowed = parse_node_list(list == std::string::npos ? std::string_view() : std::string_view(line).substr(list));
    std::erase_if(nodes, [&](int node) { return std::ranges::find(allowed, node) == allowed.end(); });
  }
  return nodes;
}

bool interleave_pages(void* data, std::size_t bytes, std::span<const int> nodes) {
  constexpr int kBits = 8 * sizeof(unsigned long);
  unsigned long mask[kMostNodes / kBits] = {};
  for (const int node : nodes) mask[node / kBits] |= 1ul << (node % kBits);
  return syscall(SYS_mbind, data, bytes, MPOL_INTERLEAVE, mask, static_cast<unsigned long>(kMostNodes), 0u) == 0;
}

}  // namespace heirloom
