#include "base/cpu_topology.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

namespace heirloom {
namespace {

std::string read_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// CPUs of one cgroup folder's quota; 0 = none.
double quota_of(const std::filesystem::path& folder) {
  double quota = 0, period = 0;
  if (std::istringstream v2(read_line(folder / "cpu.max")); v2 >> quota >> period) {
    return quota > 0 && period > 0 ? quota / period : 0;  // "max 100000" does not parse as a number: no limit
  }
  std::istringstream v1_quota(read_line(folder / "cpu.cfs_quota_us"));
  std::istringstream v1_period(read_line(folder / "cpu.cfs_period_us"));
  if (v1_quota >> quota && v1_period >> period && quota > 0 && period > 0) return quota / period;
  return 0;
}

}  // namespace

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  // The mask of a machine with more than 1024 CPUs needs a larger set; grow until the kernel accepts it.
  for (int size = 1024; size <= 65536; size *= 4) {
    cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(size));
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(size));
    CPU_ZERO_S(bytes, set);
    if (sched_getaffinity(0, bytes, set) == 0) {
      for (int cpu = 0; cpu < size; ++cpu) {
        if (CPU_ISSET_S(static_cast<std::size_t>(cpu), bytes, set)) cpus.push_back(cpu);
      }
      CPU_FREE(set);
      return cpus;
    }
    CPU_FREE(set);
  }
  for (int cpu = 0; cpu < static_cast<int>(std::thread::hardware_concurrency()); ++cpu) cpus.push_back(cpu);
  return cpus;
}

int count_physical_cores(const std::vector<int>& cpus, const std::filesystem::path& sysfs) {
  std::set<std::string> cores;
  for (const int cpu : cpus) {
    const auto topology = sysfs / "devices/system/cpu" / ("cpu" + std::to_string(cpu)) / "topology";
    std::string siblings = read_line(topology / "core_cpus_list");
    if (siblings.empty()) siblings = read_line(topology / "thread_siblings_list");  // its name before Linux 5.3
    cores.insert(siblings.empty() ? "cpu" + std::to_string(cpu) : siblings);
  }
  return static_cast<int>(cores.size());
}

double cgroup_cpu_limit(const std::filesystem::path& root, const std::string& self) {
  double limit = 0;
  const auto consider = [&](double quota) {
    if (quota > 0 && (limit == 0 || quota < limit)) limit = quota;
  };
  std::istringstream lines(self);
  // Lines are "id:controllers:path"; v2 has one line "0::path". Inside a container the path may not exist below the
  // mounted hierarchy, whose root is then our own group: the walk up ends there either way.
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::filesystem::path base = root / "sys/fs/cgroup";
    if (!controllers.empty()) {
      const std::string padded = "," + controllers + ",";
      if (padded.find(",cpu,") == std::string::npos) continue;
      base /= std::filesystem::exists(base / controllers) ? controllers : "cpu";
    }
    std::filesystem::path group = std::filesystem::path(line.substr(second + 1)).relative_path();
    for (; !group.empty(); group = group.parent_path()) consider(quota_of(base / group));
    consider(quota_of(base));
  }
  return limit;
}

int default_thread_count() {
  const int cores = count_physical_cores(allowed_cpus());
  std::ifstream file("/proc/self/cgroup");
  std::ostringstream self;
  self << file.rdbuf();
  const double limit = cgroup_cpu_limit("/", self.str());
  const int threads = limit > 0 ? std::min(cores, static_cast<int>(limit)) : cores;
  return std::max(1, threads);
}

}  // namespace heirloom
