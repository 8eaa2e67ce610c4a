// Tier selection, and thread counts from sysfs and cgroup files laid out by the test.
#include "base/cpu_features.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/cpu_topology.h"
#include "heirloom/error.h"

namespace heirloom {
namespace {

ErrorKind kind_of(std::string_view name) {
  try {
    select_cpu_tier(name);
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(name), std::string::npos);
    return error.kind();
  }
  return ErrorKind::internal;
}

TEST(cpu_features, selects_every_supported_tier_by_name_and_refuses_the_others) {
  for (const CpuTier tier : kCpuTiers) {
    const std::string_view name = cpu_tier_name(tier);
    if (tier <= best_cpu_tier()) {
      EXPECT_EQ(select_cpu_tier(name), tier);
    } else {
      EXPECT_EQ(kind_of(name), ErrorKind::device);
    }
  }
}

TEST(cpu_features, tiles_run_on_request_only) {
  if (best_cpu_tier() < CpuTier::ssse3) GTEST_SKIP() << "this CPU needs --cpu-isa scalar";
  EXPECT_EQ(select_cpu_tier(std::nullopt), std::min(best_cpu_tier(), CpuTier::avx512_vnni));
}

TEST(cpu_features, unknown_tier_is_a_usage_error) {
  EXPECT_EQ(kind_of("avx"), ErrorKind::usage);
  EXPECT_EQ(kind_of("AVX2"), ErrorKind::usage);
  EXPECT_EQ(kind_of("avx512vnni"), ErrorKind::usage);
}

TEST(cpu_features, detection_agrees_with_the_compiler_builtins) {
  // The builtins read CPUID and XCR0 themselves (libgcc), so they are an independent witness.
  __builtin_cpu_init();
  EXPECT_EQ(best_cpu_tier() >= CpuTier::ssse3, __builtin_cpu_supports("ssse3") != 0);
  EXPECT_EQ(best_cpu_tier() >= CpuTier::avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  EXPECT_EQ(best_cpu_tier() >= CpuTier::avx512,
            __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"));
}

class cpu_topology : public testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << '\n';
  }
  std::filesystem::path root_;
};

TEST_F(cpu_topology, counts_hyperthreads_of_a_core_once_and_honours_the_mask) {
  for (int cpu = 0; cpu < 8; ++cpu) {
    const int core = cpu % 4;
    write("devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/" +
              (cpu < 4 ? "core_cpus_list" : "thread_siblings_list"),
          std::to_string(core) + "," + std::to_string(core + 4));
  }
  EXPECT_EQ(count_physical_cores({0, 1, 2, 3, 4, 5, 6, 7}, root_), 4);
  EXPECT_EQ(count_physical_cores({0, 4}, root_), 1);
  EXPECT_EQ(count_physical_cores({1, 2, 5}, root_), 2);
  EXPECT_EQ(count_physical_cores({20, 21}, root_), 2);  // no topology files
}

TEST_F(cpu_topology, takes_the_smallest_quota_on_the_way_up) {
  write("sys/fs/cgroup/cpu.max", "max 100000");
  write("sys/fs/cgroup/a/cpu.max", "350000 100000");
  write("sys/fs/cgroup/a/b/cpu.max", "800000 100000");
  EXPECT_DOUBLE_EQ(cgroup_cpu_limit(root_, "0::/a/b\n"), 3.5);
  EXPECT_DOUBLE_EQ(cgroup_cpu_limit(root_, "0::/\n"), 0.0);
  EXPECT_DOUBLE_EQ(cgroup_cpu_limit(root_, ""), 0.0);
}

TEST_F(cpu_topology, reads_version_1_quotas) {
  write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "150000");
  write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000");
  EXPECT_DOUBLE_EQ(cgroup_cpu_limit(root_, "5:memory:/job\n4:cpu,cpuacct:/job\n"), 1.5);
}

TEST_F(cpu_topology, default_is_at_least_one_thread_and_no_more_than_the_mask) {
  EXPECT_GE(default_thread_count(), 1);
  EXPECT_LE(default_thread_count(), static_cast<int>(allowed_cpus().size()));
}

}  // namespace
}  // namespace heirloom
