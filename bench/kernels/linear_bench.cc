// Products with packed weights, alone: GB/s of weights for one row (decode) and a few, GOP/s for many (prefill), per type,
// shape and tier, beside this machine's read bandwidth measured in the same second.
//
//   bench_kernels [--tier NAME] [--threads N] [--type NAME]... [--repeat N] [--megabytes N] [--rows N]... [--shape TEXT]
//                 [--clock wall|cpu]
//
// --clock cpu counts the calling thread's CPU time instead of time on the wall: for --threads 1 on a busy machine.
//
// Each sample walks over copies of the weight that are larger together than the caches (--megabytes, default 600) and
// follows a bandwidth probe over as much memory. Samples of all lines are interleaved; the table shows the best and the
// median, and the share is best over best, because neighbours only ever take away.
#include <algorithm>
#include <cstring>
#include <ctime>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/kernels/linear/linear.h"
#include "backend/cpu/weight/packed_weight.h"
#include "base/block_layouts.h"
#include "base/cpu_features.h"
#include "base/thread_pool.h"

namespace {

using namespace heirloom;

bool g_cpu_time = false;

double now() {
  timespec t{};
  clock_gettime(g_cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Shape {
  const char* name;
  std::int64_t rows, cols;
};
constexpr Shape kShapes[] = {{"0.8B gdn qkv", 6144, 1024},   {"0.8B ffn up", 3584, 1024}, {"0.8B ffn down", 1024, 3584},
                             {"0.8B head", 248320, 1024},    {"35B expert up", 512, 2048}, {"35B expert down", 2048, 512},
                            {"demo gdn qkv", 768, 256},     {"demo ffn down", 256, 384}};

struct Line {
  DType type;
  Shape shape;
  std::vector<std::unique_ptr<ops::Weight>> copies;
  std::vector<std::vector<double>> seconds;  // [rows setting][sample], per pass over all copies
  std::uint64_t bytes = 0;
};

std::vector<std::byte> random_bytes(DType type, std::int64_t rows, std::int64_t cols) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(rows) * row_bytes(type, static_cast<std::uint64_t>(cols)));
  // Finite and normal as float, bf16 and f16 (no denormal slows a kernel); codes and scales of blocks are arbitrary.
  std::mt19937 engine(1);
  for (std::size_t i = 0; i + 4 <= bytes.size(); i += 4) {
    const std::uint32_t v = (engine() & 0x3bff3bffu) | 0x30003000u;
    std::memcpy(bytes.data() + i, &v, 4);
  }
  return bytes;
}

volatile std::uint64_t g_sink;

// The fastest plain read that was found: huge pages, four streams of sums, prefetch into L2 as the kernels do.
double read_bandwidth(ThreadPool& pool, const cpu::PageBuffer& memory) {
  const double start = now();
  const auto* words = reinterpret_cast<const std::uint64_t*>(memory.data());
  pool.parallel_for(static_cast<std::int64_t>(memory.bytes() / 8), 1 << 15, [&](std::int64_t begin, std::int64_t end) {
    std::uint64_t s[8] = {};
    for (std::int64_t i = begin; i + 8 <= end; i += 8) {
      __builtin_prefetch(words + i + 512, 0, 2);
      for (int j = 0; j < 8; ++j) s[j] += words[i + j];
    }
    g_sink = s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
  });
  return static_cast<double>(memory.bytes()) / (now() - start);
}

double best(std::vector<double> v) { return *std::min_element(v.begin(), v.end()); }
double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

}  // namespace

int main(int argc, char** argv) try {
  std::vector<DType> types;
  std::vector<std::int64_t> row_counts;
  int threads = 0, repeat = 5;
  std::uint64_t megabytes = 600;
  std::string shape_filter;
  std::optional<std::string> tier_name;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i], value = argv[i + 1];
    if (option == "--tier") tier_name = value;
    if (option == "--threads") threads = std::stoi(value);
    if (option == "--repeat") repeat = std::stoi(value);
    if (option == "--megabytes") megabytes = std::stoull(value);
    if (option == "--rows") row_counts.push_back(std::stoll(value));
    if (option == "--shape") shape_filter = value;
    if (option == "--clock") g_cpu_time = value == "cpu";
    if (option == "--type") {
      const auto type = parse_dtype(value);
      if (!type) fail(ErrorKind::usage, "unknown type {}", value);
      types.push_back(*type);
    }
  }
  if (types.empty()) types = {DType::q4_0, DType::q8_0, DType::q4_k, DType::q5_k, DType::q6_k, DType::bf16, DType::f32};
  if (row_counts.empty()) row_counts = {1, 4, 512};
  const CpuTier tier = select_cpu_tier(tier_name);
  ThreadPool pool(threads);

  std::vector<Line> lines;
  for (DType type : types) {
    for (const Shape& shape : kShapes) {
      if (std::string(shape.name).find(shape_filter) == std::string::npos) continue;
      if (shape.cols % dtype_info(type).block_size != 0) continue;  // K-quants have no rows of 384
      Line line{type, shape, {}, std::vector<std::vector<double>>(row_counts.size()), 0};
      const auto bytes = random_bytes(type, shape.rows, shape.cols);
      const ops::WeightData data{"bench", type, 1, shape.rows, shape.cols, {{bytes.data(), shape.rows}}};
      lines.push_back(std::move(line));
      Line& made = lines.back();
      made.copies.push_back(cpu::pack_weight(data, pool, tier));
      made.bytes = made.copies[0]->bytes;
    }
  }
  const cpu::PageBuffer memory(megabytes << 20);
  std::memset(memory.data(), 1, memory.bytes());
  std::vector<double> probes;
  fmt::print("tier {}, {} threads, {} repeats\n", cpu_tier_name(tier), pool.num_threads(), repeat);
  for (Line& line : lines) {
    const auto bytes = random_bytes(line.type, line.shape.rows, line.shape.cols);
    const ops::WeightData data{"bench", line.type, 1, line.shape.rows, line.shape.cols, {{bytes.data(), line.shape.rows}}};
    const bool decode = row_counts.front() < 64;
    while (decode && line.bytes * line.copies.size() < (megabytes << 20)) line.copies.push_back(cpu::pack_weight(data, pool, tier));
    std::vector<double> probe;
    for (int sample = 0; sample < repeat; ++sample) {
      for (std::size_t setting = 0; setting < row_counts.size(); ++setting) {
        const std::int64_t rows = row_counts[setting];
        if (rows > 64 && line.shape.rows > 100000) continue;
        std::vector<float> x(static_cast<std::size_t>(rows * line.shape.cols), 0.25f);
        std::vector<float> out(static_cast<std::size_t>(rows * line.shape.rows));
        if (rows < 64) probe.push_back(read_bandwidth(pool, memory));
        const std::size_t copies = rows < 64 ? line.copies.size() : 1;
        const double start = now();
        for (std::size_t c = 0; c < copies; ++c) {
          const ops::LinearOut outs[] = {{line.copies[c].get(), out.data()}};
          cpu::linear(pool, tier, {x.data(), rows, line.shape.cols}, outs);
        }
        line.seconds[setting].push_back((now() - start) / static_cast<double>(copies));
      }
    }
    for (std::size_t setting = 0; setting < row_counts.size(); ++setting) {
      const auto& seconds = line.seconds[setting];
      if (seconds.empty()) continue;
      const auto gigabytes = static_cast<double>(line.bytes) * 1e-9;
      const double operations = 2e-9 * static_cast<double>(line.shape.rows * line.shape.cols * row_counts[setting]);
      fmt::print("{:5} {:16} rows {:4}: best {:8.1f} us, median {:8.1f} us; ", dtype_name(line.type), line.shape.name,
                 row_counts[setting], 1e6 * best(seconds), 1e6 * median(seconds));
      if (row_counts[setting] < 64) {
        const double most = *std::max_element(probe.begin(), probe.end()) * 1e-9;
        fmt::print("{:5.1f} GB/s, probe best {:.1f} median {:.1f}, share {:.2f} (medians {:.2f}); {:.0f} GOP/s\n", gigabytes / best(seconds), most,
                   median(probe) * 1e-9, gigabytes / best(seconds) / most, gigabytes / median(seconds) / (median(probe) * 1e-9),
                   operations / best(seconds));
      } else {
        fmt::print("{:.0f} GOP/s best, {:.0f} median\n", operations / best(seconds), operations / median(seconds));
      }
    }
    line.copies.clear();
  }
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "bench_kernels: {}\n", error.what());
  return 2;
}
