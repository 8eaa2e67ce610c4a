// Single operations of the study: GEMM tiles, where weights are unpacked, copies.
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "tools/study/study_bench.h"
#include "tools/study/synthetic_model.h"

namespace heirloom::tools {
namespace {

ops::Buffer random_buffer(ops::Backend& backend, std::int64_t values, DType type = DType::f32) {
  const std::vector<std::byte> bytes = synthetic_blocks(type, static_cast<std::size_t>(values) * dtype_info(type).block_bytes);
  ops::Buffer buffer = backend.make_buffer(bytes.size());
  backend.upload(buffer.data(), bytes.data(), bytes.size());
  return buffer;
}

cuda::GemmCall product(const ops::Buffer& a, const ops::Buffer& b, const ops::Buffer& c, int m, int n, int k, bool bf16) {
  cuda::GemmCall call;
  call.m = m;
  call.n = n;
  call.k = k;
  call.a = a.data();
  call.b = b.data();
  call.c = c.f32();
  call.lda = call.ldb = k;
  call.ldc = n;
  call.bf16 = bf16;
  return call;
}

double tera_flops(int m, int n, int k) { return 2e-12 * m * n * k; }

std::unique_ptr<ops::Weight> random_weight(ops::Backend& backend, DType type, std::int64_t rows, std::int64_t cols) {
  const std::vector<std::byte> bytes = synthetic_blocks(type, static_cast<std::size_t>(rows) * row_bytes(type, static_cast<std::uint64_t>(cols)));
  return backend.load_weight({"study", type, 1, rows, cols, {{bytes.data(), rows}}});
}

/// The dense feed-forward network of the 0.8B over 947 rows.
class DenseFfn {
 public:
  DenseFfn(ops::Backend& backend, DType type)
      : backend_(backend),
        gate_(random_weight(backend, type, kInner, kHidden)),
        up_(random_weight(backend, type, kInner, kHidden)),
        down_(random_weight(backend, type, kHidden, kInner)),
        router_(random_weight(backend, DType::f32, 1, kHidden)),
        in_(random_buffer(backend, kRows * kHidden)),
        gates_(random_buffer(backend, kRows * kInner)),
        ups_(random_buffer(backend, kRows * kInner)),
        out_(random_buffer(backend, kRows * kHidden)) {}

  void run() const {
    const ops::Matrix x{in_.f32(), kRows, kHidden}, gates{gates_.f32(), kRows, kInner}, ups{ups_.f32(), kRows, kInner};
    const ops::LinearOut first[] = {{gate_.get(), gates.data}, {up_.get(), ups.data}};
    backend_.linear(x, first);
    backend_.swiglu(gates, ups, gates);
    const ops::LinearOut second{down_.get(), out_.f32()};
    backend_.linear(gates, {&second, 1});
  }
  /// The same by the grouped product of experts, as one expert: its tiles unpack the weights that they read.
  void run_unpacking_in_tiles() const {
    ops::MoeWeights one_expert{};
    one_expert.router = router_.get();
    one_expert.gate = gate_.get();
    one_expert.up = up_.get();
    one_expert.down = down_.get();
    one_expert.top_k = 1;
    backend_.moe_ffn({in_.f32(), kRows, kHidden}, one_expert, {out_.f32(), kRows, kHidden}, nullptr);
  }

 private:
  static constexpr std::int64_t kRows = 947, kHidden = 1024, kInner = 3584;
  ops::Backend& backend_;
  std::unique_ptr<ops::Weight> gate_, up_, down_, router_;
  ops::Buffer in_, gates_, ups_, out_;
};

struct HostBlock {
  explicit HostBlock(std::size_t bytes) : data(std::aligned_alloc(4096, bytes)) {
    if (data == nullptr) fail(ErrorKind::does_not_fit, "{} MiB of host memory do not fit", bytes >> 20);
    std::memset(data, 1, bytes);
  }
  HostBlock(const HostBlock&) = delete;
  HostBlock& operator=(const HostBlock&) = delete;
  ~HostBlock() { std::free(data); }
  void* data;
};

}  // namespace

bool vendor_rate(StudyBench& bench, cuda::CudaBackend& backend, int m, int n, int k, bool bf16, StudyFigure& tflops) {
  if (!backend.device().has_vendor_gemm(bf16)) return false;
  const DType type = bf16 ? DType::bf16 : DType::f32;
  const ops::Buffer a = random_buffer(backend, static_cast<std::int64_t>(m) * k, type), b = random_buffer(backend, static_cast<std::int64_t>(n) * k, type),
                    c = backend.make_buffer(static_cast<std::size_t>(m) * static_cast<std::size_t>(n) * 4);
  const cuda::GemmCall call = product(a, b, c, m, n, k, bf16);
  tflops = bench.rate(backend, tera_flops(m, n, k), "TFLOP/s", [&] { backend.device().vendor_gemm(call); });
  return true;
}

void study_gemm(StudyBench& bench) {
  if (bench.skipped_without_gpu("own tile and vendor GEMM")) return;
  const auto gpu = bench.open_gpu(cuda::GemmType::f32);
  struct Shape {
    const char* name;
    int m, n, k;
  };
  constexpr Shape kShapes[] = {{"947 x 7168 x 1024", 947, 7168, 1024}, {"4096 x 4096 x 4096", 4096, 4096, 4096}};
  for (const Shape& s : kShapes) {
    bench.begin_group();
    const ops::Buffer a = random_buffer(*gpu, static_cast<std::int64_t>(s.m) * s.k), b = random_buffer(*gpu, static_cast<std::int64_t>(s.n) * s.k),
                      c = gpu->make_buffer(static_cast<std::size_t>(s.m) * static_cast<std::size_t>(s.n) * 4);
    StudyFigure vendor, tensor_cores;
    const bool has_vendor = vendor_rate(bench, *gpu, s.m, s.n, s.k, false, vendor);
    const StudyFigure own = bench.rate(*gpu, tera_flops(s.m, s.n, s.k), "TFLOP/s", [&] {
      gpu->device().launch("sgemm_nt", {static_cast<unsigned>((s.n + 63) / 64), static_cast<unsigned>((s.m + 63) / 64)}, {256}, 0, c.f32(),
                           static_cast<const float*>(a.f32()), static_cast<const float*>(b.f32()), s.m, s.n, s.k, s.k, s.k, s.n, 1.0f, 0);
    });
    bench.add(fmt::format("{}: own tile, FP32", s.name), own, has_vendor ? fmt::format("{:.0f} % of the vendor's", 100 * own.median / vendor.median) : "");
    if (has_vendor) bench.add(fmt::format("{}: vendor, FP32", s.name), vendor);
    if (vendor_rate(bench, *gpu, s.m, s.n, s.k, true, tensor_cores)) {
      bench.add(fmt::format("{}: vendor, BF16", s.name), tensor_cores);
    }
  }
  if (!gpu->device().has_vendor_gemm(false)) bench.skip("vendor GEMM: no cuBLAS was found");
}

void study_dequantise(StudyBench& bench) {
  if (bench.skipped_without_gpu("unpacking per tile and once")) return;
  for (const cuda::GemmType gemm : {cuda::GemmType::f32, cuda::GemmType::bf16}) {
    const bool bf16 = gemm == cuda::GemmType::bf16;
    cuda::CudaBackendOptions settings;
    settings.gemm = gemm;
    settings.weight_copies = false;
    if (bf16 && !bench.open_gpu(cuda::GemmType::f32)->device().has_vendor_gemm(true)) break;
    const auto gpu = bench.open_gpu(settings), keeping = bench.open_gpu(gemm);
    const char* product = gpu->device().has_vendor_gemm(false) ? "the vendor's GEMM" : "the own tile, for want of cuBLAS";
    for (const DType type : {DType::q8_0, DType::q4_0}) {
      bench.begin_group();
      const std::string label = fmt::format("{}, {}", dtype_name(type), bf16 ? "BF16" : "FP32");
      const DenseFfn ffn(*gpu, type);
      bench.add(label + ": in every tile", bench.time(*gpu, [&] { ffn.run_unpacking_in_tiles(); }));
      bench.add(label + ": once a product, then " + product, bench.time(*gpu, [&] { ffn.run(); }));
      const DenseFfn kept(*keeping, type);
      bench.add(label + ": once for good, as rows", bench.time(*keeping, [&] { kept.run(); }));
    }
  }
}

void study_copies(StudyBench& bench) {
  if (bench.skipped_without_gpu("copies to the GPU")) return;
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  const auto gpu = bench.open_gpu();
  cuda::Device& device = gpu->device();
  const ops::Buffer to = gpu->make_buffer(kBytes);
  const auto copy = [&](const void* from) {
    return bench.rate(*gpu, kBytes * 1e-9, "GB/s", [&] {
      device.copy_in(to.data(), from, kBytes, cuda::Lane::compute);
      device.synchronize(cuda::Lane::compute);
    });
  };
  const HostBlock block(kBytes);
  bench.add("pageable", copy(block.data));
  cuda::HostMemory pinned = device.alloc_host(kBytes);
  std::memset(pinned.data, 1, kBytes);
  if (pinned.pinned) bench.add("allocated page-locked", copy(pinned.data));
  else bench.skip("page-locked memory: the driver refuses it (ulimit -l)");
  device.free_host(pinned);
  if (device.lock_host(block.data, kBytes)) {
    bench.add("registered after it was filled", copy(block.data));
    device.unlock_host(block.data);
  } else {
    bench.skip("registered memory: the driver refuses it (ulimit -l)");
  }
}

}  // namespace heirloom::tools
