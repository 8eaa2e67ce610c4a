// Memory nodes: lists as the kernel writes them, and a range that really is spread.
#include "base/numa.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

namespace heirloom::test {
namespace {

TEST(numa, node_lists_are_read_as_the_kernel_writes_them) {
  using Nodes = std::vector<int>;
  EXPECT_EQ(parse_node_list("0"), Nodes{0});
  EXPECT_EQ(parse_node_list("0-1,3\n"), (Nodes{0, 1, 3}));
  EXPECT_EQ(parse_node_list("2,4-6"), (Nodes{2, 4, 5, 6}));
  EXPECT_EQ(parse_node_list(""), Nodes{});
  EXPECT_EQ(parse_node_list("1,x"), Nodes{1});
  EXPECT_EQ(parse_node_list("7-"), Nodes{});
  EXPECT_EQ(parse_node_list("3-1"), Nodes{});
  EXPECT_EQ(parse_node_list("0-4294967295"), Nodes{});
  EXPECT_EQ(parse_node_list("0-2147483647").size(), 1024u);
}

TEST(numa, a_range_is_spread_over_the_nodes_that_were_named) {
  const std::vector<int> nodes = memory_nodes();
  if (nodes.empty()) GTEST_SKIP() << "this kernel tells of no memory nodes";
  constexpr std::size_t kBytes = 1 << 20;
  void* data = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(data, MAP_FAILED);
  if (!interleave_pages(data, kBytes, nodes)) {
    munmap(data, kBytes);
    GTEST_SKIP() << "mbind is refused here: " << std::strerror(errno);
  }
  std::memset(data, 1, kBytes);
  int mode = -1;
  unsigned long mask[16] = {};
  EXPECT_EQ(syscall(SYS_get_mempolicy, &mode, mask, 1024ul, data, static_cast<unsigned long>(MPOL_F_ADDR)), 0) << std::strerror(errno);
  EXPECT_EQ(mode, MPOL_INTERLEAVE);
  for (const int node : nodes) EXPECT_TRUE(mask[node / 64] >> (node % 64) & 1) << node;
  munmap(data, kBytes);
}

TEST(numa, a_node_that_does_not_exist_is_refused) {
  void* data = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(data, MAP_FAILED);
  EXPECT_FALSE(interleave_pages(data, 4096, std::vector<int>{1000}));
  munmap(data, 4096);
}

}  // namespace
}  // namespace heirloom::test
