#include "backend/cpu/machine_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "backend/cpu/kernels/compute_probe/compute_probe.h"
#include "backend/cpu/weight/page_buffer.h"

namespace heirloom::cpu {
namespace {

constexpr std::int64_t kProbeWords = (std::int64_t{512} << 20) / 8;
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

// The fastest plain read that was found, so that shares are not flattered: huge pages as weights have them, and prefetch
// 4 KiB ahead into L2. Without both, one core of a Xeon with AVX-512 reads 8.7 instead of 14.4 GB/s.
double read_rate(ThreadPool& pool, const PageBuffer& memory) {
  std::atomic<std::uint64_t> sink{0};
  const auto* words = reinterpret_cast<const std::uint64_t*>(memory.data());
  const auto start = std::chrono::steady_clock::now();
  pool.parallel_for(kProbeWords, 1 << 15, [&](std::int64_t begin, std::int64_t end) {
    std::uint64_t sums[8] = {};
    for (std::int64_t i = begin; i + 8 <= end; i += 8) {
      __builtin_prefetch(words + i + 512, 0, 2);
      for (std::int64_t j = 0; j < 8; ++j) sums[j] += words[i + j];
    }
    for (const std::uint64_t sum : sums) sink.fetch_add(sum, std::memory_order_relaxed);
  });
  return static_cast<double>(memory.bytes()) / seconds_since(start);
}

double compute_rate(ThreadPool& pool, ComputeProbe probe) {
  std::atomic<std::uint64_t> operations{0};
  const auto start = std::chrono::steady_clock::now();
  pool.run([&](int, int) { operations.fetch_add(probe(kRounds), std::memory_order_relaxed); });
  return static_cast<double>(operations.load()) / seconds_since(start);
}

}  // namespace

MachineLimits measure_machine(ThreadPool& pool, CpuTier tier) {
  const PageBuffer memory(static_cast<std::size_t>(kProbeWords) * 8);
  auto* words = reinterpret_cast<std::uint64_t*>(memory.data());
  pool.parallel_for(kProbeWords, 1 << 15, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) words[i] = static_cast<std::uint64_t>(i);
  });
  MachineLimits limits;
  for (int run = 0; run < kRuns; ++run) {
    limits.read_bytes_per_s = std::max(limits.read_bytes_per_s, read_rate(pool, memory));
    limits.ops_per_s = std::max(limits.ops_per_s, compute_rate(pool, probe_of(tier)));
  }
  return limits;
}

}  // namespace heirloom::cpu
