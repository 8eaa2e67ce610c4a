// How many threads this process should use: physical cores it may run on, no more than its cgroup's CPU quota.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace heirloom {

/// CPUs of this process' affinity mask, ascending.
std::vector<int> allowed_cpus();

/// Distinct physical cores among `cpus`, from `sysfs`/devices/system/cpu/cpuN/topology; a CPU whose topology cannot be
/// read counts as a core of its own.
int count_physical_cores(const std::vector<int>& cpus, const std::filesystem::path& sysfs = "/sys");

/// CPUs that the cgroup quota grants (cgroup v2 cpu.max or v1 cpu.cfs_quota_us, of this cgroup and those above it);
/// 0 = no limit. `root` is the file system's root, `self` the content of /proc/self/cgroup.
double cgroup_cpu_limit(const std::filesystem::path& root, const std::string& self);

/// The two combined for this process; at least 1. A fractional quota rounds down: one thread more than the quota
/// carries would be stopped for part of every period, and all the others would wait for it.
int default_thread_count();

}  // namespace heirloom
