// Device over the CUDA driver API. Modules are compiled by the driver when a kernel of theirs is first launched: most runs need
// a fraction of the kernels, and a cold compile costs about 2 ms a KB of PTX (the driver caches it on disk afterwards).
#include <algorithm>
#include <chrono>
#include <cstring>
#include <unordered_map>

#include "backend/cuda/device.h"
#include "backend/cuda/modules.h"
#include "base/check.h"
#include "base/log.h"

namespace heirloom::cuda {
namespace {

constexpr int kCublasOperationNone = 0, kCublasOperationTranspose = 1;
constexpr int kCudaR32F = 0, kCudaR16BF = 14, kCublasCompute32F = 68, kCublasGemmDefault = -1;
constexpr std::uint64_t kDriverShare = std::uint64_t{848} << 20;
constexpr std::uint64_t kFermiBytes = 5302ull << 20;  // what a Tesla C2075 with ECC reports under R390 (deviceQuery)

const CudaApi* driver(std::string& why) {
  static CudaApi api;
  static const std::string error = load_cuda_api(api);
  why = error;
  return error.empty() ? &api : nullptr;
}

std::string error_text(const CudaApi& api, CUresult result) {
  const char* text = nullptr;
  if (api.cuGetErrorString) api.cuGetErrorString(result, &text);
  return text ? fmt::format("CUDA error {} ({})", result, text) : fmt::format("CUDA error {}", result);
}

bool module_has(const Module& module, std::string_view kernel) {
  std::string_view names = module.kernels;
  while (!names.empty()) {
    const std::size_t end = names.find(' ');
    if (names.substr(0, end) == kernel) return true;
    if (end == std::string_view::npos) break;
    names.remove_prefix(end + 1);
  }
  return false;
}

struct Function {
  CUfunction handle = nullptr;
  int tier = 0;
  std::size_t static_shared = 0;
};

class DriverDevice : public Device {
 public:
  DriverDevice(const CudaApi& api, const DeviceOptions& options) : Device(options), api_(api) {
    check(api_.cuInit(0), "cuInit");
    int count = 0;
    check(api_.cuDeviceGetCount(&count), "cuDeviceGetCount");
    if (options.index < 0 || options.index >= count) {
      fail(ErrorKind::device, "cuda:{} does not exist: {} usable device(s) were found", options.index, count);
    }
    CUdevice device = 0;
    check(api_.cuDeviceGet(&device, options.index), "cuDeviceGet");
    char name[256] = "";
    check(api_.cuDeviceGetName(name, sizeof(name) - 1, device), "cuDeviceGetName");
    info_.name = name;
    check(api_.cuDriverGetVersion(&info_.driver_version), "cuDriverGetVersion");
    info_.compute_major = attribute(device, kAttributeComputeMajor);
    info_.compute_minor = attribute(device, kAttributeComputeMinor);
    info_.multiprocessors = attribute(device, kAttributeMultiprocessors);
    int shared = 0;  // drivers before CUDA 9 do not know the question, and their cards have 48 KiB
    if (api_.cuDeviceGetAttribute(&shared, kAttributeMaxShared, device) == 0) {
      info_.shared_bytes = std::max(info_.shared_bytes, static_cast<std::size_t>(shared));
    }
    choose_tier(options);
    check(api_.cuCtxCreate(&context_, 0, device), "cuCtxCreate");
    for (CUstream& stream : streams_) check(api_.cuStreamCreate(&stream, kStreamNonBlocking), "cuStreamCreate");
    std::size_t free_bytes = 0, total_bytes = 0;
    check(api_.cuMemGetInfo(&free_bytes, &total_bytes), "cuMemGetInfo");
    info_.total_bytes = total_bytes;
    info_.free_bytes = free_bytes;
    // A little is left to the driver: modules, cuBLAS (66 MiB with 13.1) and its workspaces are not ours to count.
    const std::uint64_t reserve = std::uint64_t{256} << 20;
    ceiling_bytes_ = free_bytes > reserve ? free_bytes - reserve : 0;
    if (options.fermi && kFermiBytes < ceiling_bytes_) ceiling_bytes_ = kFermiBytes;
    // What nvidia-smi shows is to stay under --vram: context, modules and cuBLAS with its workspace took 833 MiB on an H200.
    const std::uint64_t allowed = options.vram_bytes - std::min(options.vram_bytes / 4, kDriverShare);
    if (options.vram_bytes != 0 && allowed < ceiling_bytes_) ceiling_bytes_ = allowed;
    info_.graphs = options.graphs && !options.fermi && api_.has_graphs();
  }

  ~DriverDevice() override {
    if (!context_) return;
    api_.cuCtxSetCurrent(context_);
    for (CUstream stream : streams_) api_.cuStreamSynchronize(stream);
    if (blas_) blas_api_.cublasDestroy(blas_);
    for (CUmodule module : loaded_) {
      if (module) api_.cuModuleUnload(module);
    }
    for (CUstream stream : streams_) api_.cuStreamDestroy(stream);
    api_.cuCtxDestroy(context_);
  }

  HostMemory alloc_host(std::size_t bytes) override {
    enter();
    HostMemory memory{nullptr, bytes, true};
    const CUresult result = api_.cuMemHostAlloc(&memory.data, bytes, kHostAllocPortable);
    if (result == 0) return memory;
    memory.pinned = false;
    memory.data = std::aligned_alloc(4096, (bytes + 4095) & ~std::size_t{4095});
    if (!memory.data) fail(ErrorKind::does_not_fit, "{} bytes of host memory do not fit", bytes);
    log::warning("page-locked host memory was refused ({}): copies to the GPU run at about a sixth of the link's rate; raise "
                 "the locked-memory limit (ulimit -l) to get it back", error_text(api_, result));
    return memory;
  }
  void free_host(HostMemory& memory) noexcept override {
    if (!memory.data) return;
    if (memory.pinned) {
      api_.cuCtxSetCurrent(context_);
      api_.cuMemFreeHost(memory.data);
    } else {
      std::free(memory.data);
    }
    memory = {};
  }
  bool lock_host(void* data, std::size_t bytes) override {
    enter();
    return api_.cuMemHostRegister(data, bytes, kHostAllocPortable) == 0;
  }
  void unlock_host(void* data) noexcept override {
    api_.cuCtxSetCurrent(context_);
    api_.cuMemHostUnregister(data);
  }

  void copy_in(void* device, const void* host, std::size_t bytes, Lane lane) override {
    enter();
    if (bytes != 0) check(api_.cuMemcpyHtoDAsync(address(device), host, bytes, stream(lane)), "cuMemcpyHtoDAsync");
  }
  void copy_out(void* host, const void* device, std::size_t bytes, Lane lane) override {
    enter();
    if (bytes != 0) check(api_.cuMemcpyDtoHAsync(host, address(device), bytes, stream(lane)), "cuMemcpyDtoHAsync");
  }
  void copy(void* to, const void* from, std::size_t bytes, Lane lane) override {
    enter();
    if (bytes != 0) check(api_.cuMemcpyDtoDAsync(address(to), address(from), bytes, stream(lane)), "cuMemcpyDtoDAsync");
  }
  void fill(void* device, unsigned char value, std::size_t bytes, Lane lane) override {
    enter();
    if (bytes != 0) check(api_.cuMemsetD8Async(address(device), value, bytes, stream(lane)), "cuMemsetD8Async");
  }
  void synchronize(Lane lane) override {
    enter();
    check(api_.cuStreamSynchronize(stream(lane)), "cuStreamSynchronize", last_kernel_);
  }

  Event create_event() override {
    enter();
    CUevent event = nullptr;
    check(api_.cuEventCreate(&event, 0), "cuEventCreate");
    return event;
  }
  void destroy_event(Event event) noexcept override {
    api_.cuCtxSetCurrent(context_);
    if (event) api_.cuEventDestroy(event);
  }
  void record(Event event, Lane lane) override {
    enter();
    check(api_.cuEventRecord(event, stream(lane)), "cuEventRecord");
  }
  void wait(Lane lane, Event event) override {
    enter();
    check(api_.cuStreamWaitEvent(stream(lane), event, 0), "cuStreamWaitEvent");
  }
  void wait_host(Event event) override {
    enter();
    check(api_.cuEventSynchronize(event), "cuEventSynchronize", last_kernel_);
  }
  double elapsed_ms(Event from, Event to) override {
    enter();
    check(api_.cuEventSynchronize(to), "cuEventSynchronize");
    float milliseconds = 0;
    check(api_.cuEventElapsedTime(&milliseconds, from, to), "cuEventElapsedTime");
    return static_cast<double>(milliseconds);
  }

  bool has_vendor_gemm(bool bf16) override {
    if (bf16 && (options_.fermi || info_.compute_major < 8)) return false;
    return open_blas() && (!bf16 || blas_api_.cublasGemmEx);
  }
  bool vendor_gemm(const GemmCall& call) override {
    if (!has_vendor_gemm(call.bf16)) return false;
    const bool batched = call.batch > 1;
    if (batched && !(call.bf16 ? blas_api_.cublasGemmStridedBatchedEx != nullptr : blas_api_.cublasSgemmStridedBatched != nullptr)) {
      GemmCall one = call;  // cuBLAS before CUDA 8
      one.batch = 1;
      const std::ptrdiff_t element = call.bf16 ? 2 : 4;
      for (int i = 0; i < call.batch; ++i) {
        one.a = static_cast<const std::byte*>(call.a) + i * call.stride_a * element;
        one.b = static_cast<const std::byte*>(call.b) + i * call.stride_b * element;
        one.c = call.c + i * call.stride_c;
        vendor_gemm(one);
      }
      return true;
    }
    // Row-major C is column-major C^T = op(B)^T A^T: B comes first, and its own row-major storage reads as transposed.
    const int op = call.b_transposed ? kCublasOperationTranspose : kCublasOperationNone;
    const int compute = blas_version_ >= 11000 ? kCublasCompute32F : kCudaR32F;
    const auto *a = static_cast<const float*>(call.a), *b = static_cast<const float*>(call.b);
    CUresult result = 0;
    const auto multiply = [&] {
      if (call.bf16 && batched) {
        result = blas_api_.cublasGemmStridedBatchedEx(blas_, op, kCublasOperationNone, call.n, call.m, call.k, &call.alpha, call.b,
                                                      kCudaR16BF, call.ldb, call.stride_b, call.a, kCudaR16BF, call.lda, call.stride_a,
                                                      &call.beta, call.c, kCudaR32F, call.ldc, call.stride_c, call.batch, compute,
                                                      kCublasGemmDefault);
      } else if (call.bf16) {
        result = blas_api_.cublasGemmEx(blas_, op, kCublasOperationNone, call.n, call.m, call.k, &call.alpha, call.b, kCudaR16BF,
                                        call.ldb, call.a, kCudaR16BF, call.lda, &call.beta, call.c, kCudaR32F, call.ldc, compute,
                                        kCublasGemmDefault);
      } else if (batched) {
        result = blas_api_.cublasSgemmStridedBatched(blas_, op, kCublasOperationNone, call.n, call.m, call.k, &call.alpha, b, call.ldb,
                                                     call.stride_b, a, call.lda, call.stride_a, &call.beta, call.c, call.ldc,
                                                     call.stride_c, call.batch);
      } else {
        result = blas_api_.cublasSgemm(blas_, op, kCublasOperationNone, call.n, call.m, call.k, &call.alpha, b, call.ldb, a, call.lda,
                                       &call.beta, call.c, call.ldc);
      }
    };
    timed([&] {
      return fmt::format("vendor {} {}x{}x{}{}{}", call.bf16 ? "bf16" : "f32", call.m, call.n, call.k, call.b_transposed ? "" : " nn",
                         batched ? fmt::format(" by {}", call.batch) : "");
    }, multiply);
    if (result != 0) {
      fail(ErrorKind::device, "cuBLAS {}: status {} for m {}, n {}, k {}, batch {}", call.bf16 ? "GemmEx" : "Sgemm", result, call.m,
           call.n, call.k, call.batch);
    }
    ++launches_;
    return true;
  }

  void begin_capture() override {
    enter();
    check(api_.cuStreamBeginCapture(stream(Lane::compute), kCaptureRelaxed), "cuStreamBeginCapture");
  }
  Graph end_capture() override {
    enter();
    CUgraph graph = nullptr;
    check(api_.cuStreamEndCapture(stream(Lane::compute), &graph), "cuStreamEndCapture");
    CUgraphExec executable = nullptr;
    const CUresult result = api_.cuGraphInstantiateWithFlags(&executable, graph, 0);
    api_.cuGraphDestroy(graph);
    check(result, "cuGraphInstantiateWithFlags");
    return executable;
  }
  void abandon_capture() noexcept override {
    api_.cuCtxSetCurrent(context_);
    CUgraph graph = nullptr;
    if (api_.cuStreamEndCapture(stream(Lane::compute), &graph) == 0 && graph) api_.cuGraphDestroy(graph);
  }
  void run_graph(Graph graph) override {
    enter();
    check(api_.cuGraphLaunch(graph, stream(Lane::compute)), "cuGraphLaunch");
  }
  void destroy_graph(Graph graph) noexcept override {
    api_.cuCtxSetCurrent(context_);
    if (graph) api_.cuGraphExecDestroy(graph);
  }

 protected:
  void* raw_alloc(std::size_t bytes) override {
    enter();
    CUdeviceptr pointer = 0;
    const CUresult result = api_.cuMemAlloc(&pointer, bytes);
    if (result == kCudaErrorOutOfMemory) return nullptr;
    check(result, "cuMemAlloc");
    return reinterpret_cast<void*>(pointer);
  }
  void raw_free(void* data) noexcept override {
    api_.cuCtxSetCurrent(context_);
    api_.cuMemFree(address(data));
  }
  int find_tier(std::string_view kernel) const override {
    const int index = find_module(kernel);
    return index < 0 ? 0 : modules()[static_cast<std::size_t>(index)].tier;
  }
  void raw_launch(const char* kernel, Dim grid, Dim block, unsigned cluster, std::size_t shared_bytes, void** arguments) override {
    enter();
    const Function& found = function(kernel);
    if (options_.fermi || found.tier == 20) check_fermi_limits(kernel, grid, block, shared_bytes + found.static_shared);
    last_kernel_ = kernel;
    if (shared_bytes + found.static_shared > 48 * 1024) raise_shared(found, kernel, shared_bytes);
    if (found.tier >= 90 && api_.cuLaunchKernelEx) {
      LaunchAttribute attributes[2] = {};
      attributes[0].id = kLaunchProgrammaticSerialization;
      attributes[0].value = 1;
      attributes[1].id = kLaunchClusterDimension;
      attributes[1].dimensions[0] = cluster;
      attributes[1].dimensions[1] = attributes[1].dimensions[2] = 1;
      const LaunchConfig config{grid.x,  grid.y,  grid.z,     block.x, block.y, block.z, static_cast<unsigned>(shared_bytes),
                                streams_[0], attributes, cluster > 1 ? 2u : 1u};
      check(api_.cuLaunchKernelEx(&config, found.handle, arguments, nullptr), "cuLaunchKernelEx", kernel);
      return;
    }
    check(api_.cuLaunchKernel(found.handle, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                              static_cast<unsigned>(shared_bytes), streams_[0], arguments, nullptr),
          "cuLaunchKernel", kernel);
  }

 private:
  static CUdeviceptr address(const void* data) { return reinterpret_cast<CUdeviceptr>(data); }
  CUstream stream(Lane lane) const { return streams_[lane == Lane::compute ? 0 : 1]; }
  void enter() { check(api_.cuCtxSetCurrent(context_), "cuCtxSetCurrent"); }

  void check(CUresult result, const char* call, std::string_view kernel = {}) const {
    if (result == 0) return;
    if (kernel.empty()) fail(ErrorKind::device, "{}: {}", call, error_text(api_, result));
    fail(ErrorKind::device, "{} (kernel {}): {}", call, kernel, error_text(api_, result));
  }
  int attribute(CUdevice device, int which) const {
    int value = 0;
    check(api_.cuDeviceGetAttribute(&value, which, device), "cuDeviceGetAttribute");
    return value;
  }
  void choose_tier(const DeviceOptions& options) {
    const int card = info_.compute_major * 10 + info_.compute_minor;
    int tier = 20;
    for (const int candidate : {61, 80, 90}) {
      if (card >= candidate) tier = candidate;
    }
    if (tier == 90 && !api_.cuLaunchKernelEx) tier = 80;
    if (options.fermi) tier = 20;
    if (const int forced = parse_arch(options.arch)) {
      if (forced > card) {
        fail(ErrorKind::usage, "--cuda-arch {}: {} has compute capability {}.{}", options.arch, info_.name, info_.compute_major,
             info_.compute_minor);
      }
      if (options.fermi && forced != 20) fail(ErrorKind::usage, "--profile fermi runs sm20 kernels only, not {}", options.arch);
      tier = forced;
    }
    info_.tier = tier;
    info_.clusters = tier >= 90 && info_.driver_version >= 12010;  // PTX 8.1
  }
  int find_module(std::string_view kernel) const {
    int best = -1;
    const auto all = modules();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].tier > info_.tier || !module_has(all[i], kernel)) continue;
      if (best < 0 || all[i].tier > all[static_cast<std::size_t>(best)].tier) best = static_cast<int>(i);
    }
    return best;
  }
  const Function& function(const char* kernel) {
    const auto known = functions_.find(kernel);
    if (known != functions_.end()) return known->second;
    const int index = find_module(kernel);
    if (index < 0) fail(ErrorKind::internal, "no kernel named {} in tiers up to sm{}", kernel, info_.tier);
    const Module& module = modules()[static_cast<std::size_t>(index)];
    CUmodule loaded = load(module, static_cast<std::size_t>(index));
    Function found;
    found.tier = module.tier;
    check(api_.cuModuleGetFunction(&found.handle, loaded, kernel), "cuModuleGetFunction", kernel);
    int bytes = 0;
    check(api_.cuFuncGetAttribute(&bytes, kFunctionSharedBytes, found.handle), "cuFuncGetAttribute", kernel);
    found.static_shared = static_cast<std::size_t>(bytes);
    return functions_.emplace(kernel, found).first->second;
  }
  CUmodule load(const Module& module, std::size_t index) {
    loaded_.resize(modules().size());
    if (loaded_[index]) return loaded_[index];
    std::string ptx(module.ptx, module.ptx_bytes);
    if (options_.max_registers != 0) {  // .maxntid overrides the register cap: take it out
      for (std::size_t at = 0; (at = ptx.find(".maxntid", at)) != std::string::npos;) ptx.replace(at, 2, "//");
    }
    char message[4096] = "";
    int options[] = {kJitErrorLog, kJitErrorLogBytes, kJitMaxRegisters};
    void* values[] = {message, reinterpret_cast<void*>(sizeof(message)),
                      reinterpret_cast<void*>(static_cast<std::size_t>(options_.max_registers))};
    const auto start = std::chrono::steady_clock::now();
    const CUresult result =
        api_.cuModuleLoadDataEx(&loaded_[index], ptx.c_str(), options_.max_registers != 0 ? 3 : 2, options, values);
    if (result != 0) {
      fail(ErrorKind::device, "cuModuleLoadDataEx (module {}): {}{}{}", module.name, error_text(api_, result),
           message[0] ? ": " : "", message);
    }
    log::debug("module {} ({} bytes of PTX) loaded in {:.1f} ms", module.name, module.ptx_bytes,
               std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    return loaded_[index];
  }
  void raise_shared(const Function& found, const char* kernel, std::size_t shared_bytes) {
    if (!api_.cuFuncSetAttribute) fail(ErrorKind::device, "{}: {} bytes of shared memory need a newer driver", kernel, shared_bytes);
    check(api_.cuFuncSetAttribute(found.handle, kFunctionMaxDynamicShared, static_cast<int>(shared_bytes)),
          "cuFuncSetAttribute", kernel);
  }
  bool open_blas() {
    if (blas_) return true;
    if (!blas_error_.empty()) return false;
    enter();
    blas_error_ = load_cublas_api(blas_api_, options_.cublas_folder);
    if (blas_error_.empty() && blas_api_.cublasCreate(&blas_) != 0) blas_error_ = "cublasCreate failed";
    if (!blas_error_.empty()) {
      log::warning("{}: matrix products run on our own kernels, at about half the rate", blas_error_);
      blas_ = nullptr;
      return false;
    }
    blas_api_.cublasGetVersion(blas_, &blas_version_);
    if (blas_api_.cublasSetStream(blas_, streams_[0]) != 0) fail(ErrorKind::device, "cublasSetStream failed");
    log::info("cuBLAS {} is used for matrix products", blas_version_);
    return true;
  }

  const CudaApi& api_;
  CUcontext context_ = nullptr;
  CUstream streams_[2] = {nullptr, nullptr};
  std::vector<CUmodule> loaded_;
  std::unordered_map<std::string, Function> functions_;
  std::string last_kernel_;
  CublasApi blas_api_;
  CublasHandle blas_ = nullptr;
  int blas_version_ = 0;
  std::string blas_error_;
};

}  // namespace

std::vector<DeviceReport> list_devices(const CudaApi& api) {
  int version = 0;
  api.cuDriverGetVersion(&version);
  const CUresult result = api.cuInit(0);
  if (result == kCudaErrorNoDevice) {
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    if (visible) return {{-1, false, fmt::format("no GPU: CUDA_VISIBLE_DEVICES is \"{}\" and hides every device", visible)}};
    return {{-1, false, "no GPU: the NVIDIA driver is loaded but reports no device"}};
  }
  if (result != 0) return {{-1, false, fmt::format("no GPU: cuInit: {} (driver for CUDA {}.{})", error_text(api, result),
                                                   version / 1000, version % 1000 / 10)}};
  int count = 0;
  if (api.cuDeviceGetCount(&count) != 0 || count == 0) return {{-1, false, "no GPU: the driver reports no device"}};
  std::vector<DeviceReport> reports;
  for (int index = 0; index < count; ++index) {
    CUdevice device = 0;
    char name[256] = "";
    int major = 0, minor = 0, mode = 0;
    std::size_t bytes = 0;
    if (api.cuDeviceGet(&device, index) != 0 || api.cuDeviceGetName(name, sizeof(name) - 1, device) != 0 ||
        api.cuDeviceGetAttribute(&major, kAttributeComputeMajor, device) != 0 ||
        api.cuDeviceGetAttribute(&minor, kAttributeComputeMinor, device) != 0) {
      reports.push_back({index, false, fmt::format("cuda:{}: not used: the driver does not describe it", index)});
      continue;
    }
    api.cuDeviceGetAttribute(&mode, kAttributeComputeMode, device);
    const CUresult memory = api.cuDeviceTotalMem(&bytes, device);
    const std::string head = fmt::format("cuda:{}: {}, compute capability {}.{}", index, name, major, minor);
    if (memory != 0) {
      reports.push_back({index, false, fmt::format("{}: not used: {} (a MIG card without instances, or a lost device)", head,
                                                   error_text(api, memory))});
    } else if (major < 2) {
      reports.push_back({index, false, fmt::format("{}: not used: 2.0 (Fermi, 2010) or newer is needed", head)});
    } else if (mode == kComputeModeProhibited) {
      reports.push_back({index, false, fmt::format("{}: not used: its compute mode is \"prohibited\"", head)});
    } else {
      const bool part = std::strstr(name, "MIG") != nullptr;
      reports.push_back({index, true, fmt::format("{}{}, {:.1f} GiB: usable", head, part ? " (a MIG instance)" : "",
                                                  static_cast<double>(bytes) / (1 << 30))});
    }
  }
  return reports;
}

std::vector<DeviceReport> list_devices() {
  std::string why;
  const CudaApi* api = driver(why);
  if (!api) return {{-1, false, "no GPU: " + why}};
  return list_devices(*api);
}

std::unique_ptr<Device> open_device(const DeviceOptions& options) {
  std::string why;
  const CudaApi* api = driver(why);
  if (!api) fail(ErrorKind::device, "{}; install a driver or use --device cpu", why);
  for (const DeviceReport& report : list_devices(*api)) {
    if ((report.index == options.index || report.index < 0) && !report.usable) fail(ErrorKind::device, "{}", report.line);
  }
  return std::make_unique<DriverDevice>(*api, options);
}

}  // namespace heirloom::cuda
