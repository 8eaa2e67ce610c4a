// One mixture-of-experts layer of the 35B-A3B model with 128 experts (2048 x 512, top 8, shared expert 512): GB/s of the weights that
// a token chooses (decode), GOP/s (prefill).
//   bench_moe [--tier NAME] [--threads N] [--clock wall|cpu] [--type NAME] [--repeat N] [--tokens N]...
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/kernels/moe/moe_experts.h"
#include "backend/cpu/weight/packed_weight.h"
#include "base/cpu_features.h"
#include "base/thread_pool.h"

int main(int argc, char** argv) {
  using namespace heirloom;
  constexpr std::int64_t kHidden = 2048, kInter = 512, kExperts = 128;
  constexpr int kTopK = 8;
  std::optional<std::string> tier_name;
  DType type = DType::q4_0;
  int threads = 0, repeat = 5;
  bool cpu_time = false;
  std::vector<std::int64_t> token_counts;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i], value = argv[i + 1];
    if (option == "--tier") tier_name = value;
    if (option == "--threads") threads = std::stoi(value);
    if (option == "--repeat") repeat = std::stoi(value);
    if (option == "--clock") cpu_time = value == "cpu";
    if (option == "--type") type = parse_dtype(value).value();
    if (option == "--tokens") token_counts.push_back(std::stoll(value));
  }
  if (token_counts.empty()) token_counts = {1, 4, 512};
  const auto now = [&] {
    timespec t{};
    clock_gettime(cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  ThreadPool pool(threads);
  const CpuTier tier = select_cpu_tier(tier_name);
  std::mt19937 engine(1);
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::unique_ptr<ops::Weight>> packed;
  const auto make = [&](DType t, std::int64_t experts, std::int64_t rows, std::int64_t cols) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(experts * rows) * row_bytes(t, static_cast<std::uint64_t>(cols)));
    for (std::size_t i = 0; i + 4 <= bytes.size(); i += 4) {  // finite and normal as float and f16
      const std::uint32_t v = (engine() & 0x3bff3bffu) | 0x30003000u;
      std::memcpy(bytes.data() + i, &v, 4);
    }
    if (t == DType::f32) {  // the router: spread the choices
      std::normal_distribution<float> normal;
      for (std::size_t i = 0; i + 4 <= bytes.size(); i += 4) {
        const float v = normal(engine);
        std::memcpy(bytes.data() + i, &v, 4);
      }
    }
    packed.push_back(cpu::pack_weight({"bench", t, experts, rows, cols, {{bytes.data(), experts * rows}}}, pool, tier));
    return packed.back().get();
  };
  ops::MoeWeights weights{};
  weights.router = make(DType::f32, 1, kExperts, kHidden);
  weights.gate = make(type, kExperts, kInter, kHidden);
  weights.up = make(type, kExperts, kInter, kHidden);
  weights.down = make(type, kExperts, kHidden, kInter);
  weights.shared_gate = make(type, 1, kInter, kHidden);
  weights.shared_up = make(type, 1, kInter, kHidden);
  weights.shared_down = make(type, 1, kHidden, kInter);
  weights.shared_router = make(DType::f32, 1, 1, kHidden);
  weights.top_k = kTopK;

  for (const std::int64_t tokens : token_counts) {
    std::vector<double> seconds;
    std::normal_distribution<float> normal;
    for (int r = 0; r < repeat * (tokens < 64 ? 20 : 1); ++r) {
      std::vector<float> x(static_cast<std::size_t>(tokens * kHidden)), out(x.size());
      for (float& v : x) v = normal(engine);  // new choices every time: a decoded token finds cold experts
      const double start = now();
      cpu::moe_experts(pool, tier, {x.data(), tokens, kHidden}, weights, {out.data(), tokens, kHidden}, nullptr);
      seconds.push_back(now() - start);
    }
    std::sort(seconds.begin(), seconds.end());
    const double best = seconds.front(), median = seconds[seconds.size() / 2];
    const auto active = static_cast<double>(weights.router->bytes + (weights.gate->bytes + weights.up->bytes + weights.down->bytes) / kExperts * kTopK +
                                            weights.shared_gate->bytes * 3);
    const double operations = 2.0 * static_cast<double>(tokens) * (3.0 * (kTopK + 1) * kHidden * kInter + kExperts * kHidden);
    fmt::print("{} {} {} threads, {:4} tokens: best {:.1f} us, median {:.1f} us; ", cpu_tier_name(tier), dtype_name(type), pool.num_threads(), tokens, best * 1e6,
               median * 1e6);
    if (tokens == 1) fmt::print("{:.1f} GB/s best, {:.1f} median\n", active * 1e-9 / best, active * 1e-9 / median);
    else fmt::print("{:.0f} GOP/s best, {:.0f} median; {:.1f} tok/s through 40 such layers\n", operations * 1e-9 / best, operations * 1e-9 / median, static_cast<double>(tokens) / best / 40);
  }
  return 0;
}
