#include "backend/cpu/machine_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "backend/cpu/kernels/compute_probe/compute_probe.h"

namespace heirloom::cpu {
namespace {

constexpr std::size_t kProbeWords = (std::size_t{512} << 20) / sizeof(std::uint64_t);
constexpr int kRuns = 5;
constexpr std::uint64_t kRounds = 4'000'000;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::uint64_t scalar_probe(std::uint64_t rounds) {
  std::uint32_t sums[4] = {1, 2, 3, 4}, x = 3;
  for (std::uint64_t r = 0; r < rounds; ++r) {
    asm volatile("" : "+r"(x));
    for (std::uint32_t& sum : sums) sum += x * sum;
  }
  for (const std::uint32_t sum : sums) asm volatile("" : : "r"(sum));
  return rounds * 4 * 2;
}

ComputeProbe probe_of(CpuTier tier) {
  switch (tier) {
    case CpuTier::scalar: return scalar_probe;
    case CpuTier::ssse3: return ssse3::compute_probe;
    case CpuTier::avx2: return avx2::compute_probe;
    case CpuTier::avx512: return avx512::compute_probe;
    case CpuTier::avx512_vnni:
    case CpuTier::amx: return avx512_vnni::compute_probe;  // AMX tiles are quoted against vector instructions too
  }
  return scalar_probe;
}

double read_rate(ThreadPool& pool, const std::vector<std::uint64_t>& memory) {
  std::atomic<std::uint64_t> sink{0};
  const auto start = std::chrono::steady_clock::now();
  pool.parallel_for(static_cast<std::int64_t>(memory.size()), 1 << 15, [&](std::int64_t begin, std::int64_t end) {
    std::uint64_t sums[8] = {};
    for (std::int64_t i = begin; i + 8 <= end; i += 8) {
      for (std::int64_t j = 0; j < 8; ++j) sums[j] += memory[static_cast<std::size_t>(i + j)];
    }
    for (const std::uint64_t sum : sums) sink.fetch_add(sum, std::memory_order_relaxed);
  });
  return static_cast<double>(memory.size() * sizeof(std::uint64_t)) / seconds_since(start);
}

double compute_rate(ThreadPool& pool, ComputeProbe probe) {
  std::atomic<std::uint64_t> operations{0};
  const auto start = std::chrono::steady_clock::now();
  pool.run([&](int, int) { operations.fetch_add(probe(kRounds), std::memory_order_relaxed); });
  return static_cast<double>(operations.load()) / seconds_since(start);
}

}  // namespace

MachineLimits measure_machine(ThreadPool& pool, CpuTier tier) {
  std::vector<std::uint64_t> memory(kProbeWords);
  pool.parallel_for(static_cast<std::int64_t>(memory.size()), 1 << 15, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) memory[static_cast<std::size_t>(i)] = static_cast<std::uint64_t>(i);
  });
  MachineLimits limits;
  for (int run = 0; run < kRuns; ++run) {
    limits.read_bytes_per_s = std::max(limits.read_bytes_per_s, read_rate(pool, memory));
    limits.ops_per_s = std::max(limits.ops_per_s, compute_rate(pool, probe_of(tier)));
  }
  return limits;
}

}  // namespace heirloom::cpu
