// The ops of the CPU backend that are not products with weights, alone: us a call at the dims of a 0.8B dense model (hidden
// 1024, GDN 16/16 heads x 128, attention 8/2 x 256), of a 35B mixture (GDN 16/32, attention 16/2) and of a SigLIP tower
// (16 heads x 72), with GB/s of state or KV and GFLOP/s where they say something; and the cost of a fork/join of the pool.
//
//   bench_mixers [--tier NAME] [--threads N] [--repeat N] [--filter TEXT] [--clock wall|cpu]
//
// --clock cpu counts the calling thread's CPU time: for --threads 1 on a busy machine. Every layer has a state of its own, as
// in a model, so that decode reads it from where it lies (last-level cache or memory).
#include <algorithm>
#include <atomic>
#include <cmath>
#include <ctime>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"

namespace {

using namespace heirloom;
using ops::Matrix;

bool g_cpu_time = false;

double now() {
  timespec t{};
  clock_gettime(g_cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

std::vector<float> floats(std::int64_t n) {
  std::mt19937 engine(static_cast<std::uint32_t>(n));
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& v : values) v = static_cast<float>(engine()) * 0x1p-31f - 1.0f;
  return values;
}

class Bench {
 public:
  Bench(cpu::CpuBackend& backend, int repeat, std::string filter) : backend_(backend), repeat_(repeat), filter_(std::move(filter)) {}

  /// `bytes` and `flops` of one call; body(i) is call i of `calls`.
  void line(const std::string& name, int calls, double bytes, double flops, const std::function<void(int)>& body) {
    if (name.find(filter_) == std::string::npos) return;
    std::vector<double> seconds;
    body(0);
    for (int sample = 0; sample < repeat_; ++sample) {
      const double start = now();
      for (int i = 0; i < calls; ++i) body(i);
      seconds.push_back((now() - start) / calls);
    }
    std::sort(seconds.begin(), seconds.end());
    const double best = seconds.front();
    fmt::print("{:44} best {:10.2f} us, median {:10.2f} us", name, best * 1e6, seconds[seconds.size() / 2] * 1e6);
    if (bytes > 0) fmt::print(", {:6.1f} GB/s", bytes / best * 1e-9);
    if (flops > 0) fmt::print(", {:6.1f} GFLOP/s", flops / best * 1e-9);
    fmt::print("\n");
  }

  void gdn(const char* model, int nk, int nv, int tokens) {
    const std::string name = fmt::format("gdn_mixer {} {} tokens", model, tokens);
    if (name.find(filter_) == std::string::npos) return;
    constexpr int kDim = 128, kLayers = 18;
    ops::StepPlan plan;
    plan.shape.num_gdn_layers = kLayers;
    plan.shape.conv_channels = (2 * nk + nv) * kDim;
    plan.shape.num_v_heads = nv;
    plan.shape.head_k_dim = plan.shape.head_v_dim = kDim;
    plan.num_rows = tokens;
    const int channels = plan.shape.conv_channels, width = nv * kDim;
    std::vector<float> conv = floats(channels * 4), dt = floats(nv), a_log = floats(nv), norm = floats(kDim);
    for (float& v : a_log) v = -std::abs(v);
    std::vector<float> qkv = floats(std::int64_t{tokens} * channels), z = floats(std::int64_t{tokens} * width), a = floats(tokens * nv),
                       b = floats(tokens * nv), out(z.size());
    std::vector<float> conv_state(plan.shape.conv_floats()), state(plan.shape.recurrent_floats());
    plan.sequences.push_back({.first_row = 0, .num_rows = tokens, .past_tokens = 0, .conv = conv_state.data(),
                              .recurrent = state.data(), .captures = {}, .pages = {}});
    const ops::GdnWeights weights{conv.data(), dt.data(), a_log.data(), norm.data(), nk, nv, kDim, kDim, false, 1e-6f};
    backend_.begin_step(plan, 0);
    const double elements = static_cast<double>(nv) * kDim * kDim;
    line(name, tokens > 8 ? 2 : kLayers, tokens == 1 ? 8 * elements : 0, 8 * elements * tokens, [&](int layer) {
      backend_.gdn_mixer(layer, weights, {qkv.data(), tokens, channels}, {z.data(), tokens, width}, {a.data(), tokens, nv},
                         {b.data(), tokens, nv}, {out.data(), tokens, width}, nullptr);
    });
    backend_.end_step();
  }

  void attention(const char* model, int nh, int nkv, DType type, int past, int tokens) {
    const std::string name = fmt::format("attention_mixer {} {} {} tokens after {}", model, dtype_name(type), tokens, past);
    if (name.find(filter_) == std::string::npos) return;
    constexpr int kDim = 256, kRotary = 64;
    ops::StepPlan plan;
    plan.shape.num_attention_layers = 2;
    plan.shape.num_kv_heads = nkv;
    plan.shape.head_dim = kDim;
    plan.shape.kv_type = type;
    plan.num_rows = tokens;
    const std::vector<float> q_norm = floats(kDim), k_norm = floats(kDim), cos = floats(tokens * kRotary / 2), sin = cos;
    std::vector<float> q = floats(std::int64_t{tokens} * nh * 2 * kDim), k = floats(std::int64_t{tokens} * nkv * kDim), v = k,
                       out(static_cast<std::size_t>(tokens * nh * kDim));
    const int pages = (past + tokens + ops::StateShape::kPageTokens - 1) / ops::StateShape::kPageTokens;
    std::vector<std::vector<std::byte>> memory(static_cast<std::size_t>(pages), std::vector<std::byte>(plan.shape.page_bytes(), std::byte{0x11}));
    std::vector<std::byte*> pointers;
    for (auto& page : memory) pointers.push_back(page.data());
    plan.sequences.push_back({.first_row = 0, .num_rows = tokens, .past_tokens = past, .conv = nullptr, .recurrent = nullptr,
                              .captures = {}, .pages = pointers});
    const ops::AttentionWeights weights{q_norm.data(), k_norm.data(), nh, nkv, kDim, kRotary, 1e-6f};
    backend_.begin_step(plan, 0);
    const double pairs = static_cast<double>(tokens) * (past + 0.5 * (tokens + 1));
    const double bytes = 2.0 * nkv * kDim * (past + tokens) * dtype_info(type).block_bytes;
    line(name, 2, tokens == 1 ? bytes : 0, 4.0 * nh * kDim * pairs, [&](int layer) {
      backend_.attention_mixer(layer, weights, {q.data(), tokens, nh * 2 * kDim}, {k.data(), tokens, nkv * kDim},
                               {v.data(), tokens, nkv * kDim}, cos.data(), sin.data(), {out.data(), tokens, nh * kDim}, nullptr);
    });
    backend_.end_step();
  }

  void vision(int patches) {
    constexpr int kHeads = 16, kDim = 72;
    std::vector<float> q = floats(std::int64_t{patches} * kHeads * kDim), k = q, v = q, out(q.size());
    const std::int32_t segments[] = {0, patches};
    line(fmt::format("segment_attention 16 x 72, {} patches", patches), 1, 0, 4.0 * kHeads * kDim * patches * patches, [&](int) {
      backend_.segment_attention({q.data(), patches, kHeads * kDim}, {k.data(), patches, kHeads * kDim},
                                 {v.data(), patches, kHeads * kDim}, kHeads, segments, nullptr, nullptr,
                                 {out.data(), patches, kHeads * kDim});
    });
  }

  void small(std::int64_t rows) {
    std::vector<float> x = floats(rows * 1024), y = x, out(x.size()), weight = floats(1024);
    std::vector<float> gate = floats(rows * 3584), up = gate, ffn(gate.size());
    const auto label = [&](const char* op) { return fmt::format("{}, {} row{}", op, rows, rows == 1 ? "" : "s"); };
    line(label("add_rms_norm 1024"), 50, 0, 0, [&](int) {
      backend_.add_rms_norm({x.data(), rows, 1024}, {y.data(), rows, 1024}, weight.data(), 1e-6f, {out.data(), rows, 1024});
    });
    line(label("swiglu 3584"), 50, 0, 0, [&](int) {
      backend_.swiglu({gate.data(), rows, 3584}, {up.data(), rows, 3584}, {ffn.data(), rows, 3584});
    });
    // In place: fresh input each time, or the values would shrink to denormals.
    for (const auto& [kind, name] : {std::pair{ops::Gelu::tanh, "gelu tanh 3584, with a copy"}, {ops::Gelu::erf, "gelu erf 3584, with a copy"}}) {
      line(label(name), 50, 0, 0, [&](int) {
        std::copy(up.begin(), up.end(), gate.begin());
        backend_.gelu({gate.data(), rows, 3584}, kind);
      });
    }
  }

  void rest() {
    std::vector<float> logits = floats(248320);
    std::int32_t id = 0;
    line("argmax 248320", 10, 4.0 * 248320, 0, [&](int) { backend_.argmax({logits.data(), 1, 248320}, &id); });
    // Parts wait for each other, so that every thread takes one: the whole price of a loop that all threads share.
    line("fork/join with a part on every thread", 2000, 0, 0, [&](int) {
      std::atomic<int> arrived{0};
      const int all = backend_.pool().num_threads();
      backend_.pool().run([&](int, int) {
        arrived.fetch_add(1);
        while (arrived.load() < all) {
        }
      });
    });
  }

 private:
  cpu::CpuBackend& backend_;
  int repeat_;
  std::string filter_;
};

}  // namespace

int main(int argc, char** argv) try {
  int threads = 0, repeat = 9;
  std::string filter;
  std::optional<std::string> tier_name;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i], value = argv[i + 1];
    if (option == "--tier") tier_name = value;
    if (option == "--threads") threads = std::stoi(value);
    if (option == "--repeat") repeat = std::stoi(value);
    if (option == "--filter") filter = value;
    if (option == "--clock") g_cpu_time = value == "cpu";
  }
  cpu::CpuBackend backend({.threads = threads, .tier = select_cpu_tier(tier_name), .profiler = nullptr});
  fmt::print("{}, {} repeats\n", backend.description(), repeat);
  Bench bench(backend, repeat, filter);
  for (const int tokens : {1, 4, 512}) {
    bench.gdn("0.8B", 16, 16, tokens);
    bench.gdn("35B", 16, 32, tokens);
  }
  for (const DType type : {DType::f32, DType::f16}) {
    for (const auto& [past, tokens] : {std::pair{0, 1}, {1000, 1}, {10000, 1}, {0, 512}, {10000, 128}}) {
      bench.attention("0.8B", 8, 2, type, past, tokens);
      bench.attention("35B", 16, 2, type, past, tokens);
    }
  }
  bench.vision(1024);
  bench.vision(4096);
  bench.small(1);
  bench.small(512);
  bench.rest();
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "bench_mixers: {}\n", error.what());
  return 2;
}
