// How fast weights are packed at load: GB/s of file bytes, per type and number of threads.
//   bench_pack [--threads N] [--clock wall|cpu]     (cpu: for --threads 1 on a busy machine)
#include <fmt/format.h>

#include <ctime>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/cpu/weight/packed_weight.h"
#include "base/cpu_features.h"
#include "base/thread_pool.h"

int main(int argc, char** argv) {
  using namespace heirloom;
  int threads = 0;
  bool cpu_time = false;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--threads") threads = std::stoi(argv[i + 1]);
    if (std::string(argv[i]) == "--clock") cpu_time = std::string(argv[i + 1]) == "cpu";
  }
  const auto now = [&] {
    timespec t{};
    clock_gettime(cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  ThreadPool pool(threads);
  for (DType type : {DType::q4_0, DType::q8_0, DType::q4_k, DType::q5_k, DType::q6_k, DType::q3_k, DType::bf16, DType::f32}) {
    const std::int64_t experts = 64, rows = 512, cols = 2048;
    const std::vector<std::byte> bytes(static_cast<std::size_t>(experts * rows) * row_bytes(type, cols), std::byte{0x21});
    const ops::WeightData data{"bench", type, experts, rows, cols, {{bytes.data(), experts * rows}}};
    double best = 1e9;
    for (int repeat = 0; repeat < 5; ++repeat) {
      const double start = now();
      const auto weight = cpu::pack_weight(data, pool, best_cpu_tier());
      const double seconds = now() - start;
      best = seconds < best ? seconds : best;
    }
    fmt::print("{:5} {} threads: {:.2f} GB/s of file bytes\n", dtype_name(type), pool.num_threads(), 1e-9 * static_cast<double>(bytes.size()) / best);
  }
  return 0;
}
