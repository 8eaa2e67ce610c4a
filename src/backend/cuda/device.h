// One NVIDIA GPU, or the emulator that stands in for it: memory under a ceiling, two ordered lanes of work (compute, copy),
// events, kernel launches by name with every limit checked, the vendor's GEMM, and recording of launches as a graph.
// Everything that goes through the driver is checked in one place and fails as Error{device} naming the call and kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/cuda_api.h"

namespace heirloom::cuda {

struct Dim {
  unsigned x = 1, y = 1, z = 1;
};

/// Lanes are in-order streams; work on different lanes may overlap. Events order them.
enum class Lane { compute, copy };

struct DeviceOptions {
  int index = 0;
  std::string arch;                // "" = best tier of the card; "sm20", "sm61", "sm80", "sm90" force one (or fewer)
  std::uint64_t vram_bytes = 0;    // ceiling of device memory, the driver's and cuBLAS's share included; 0 = what is free
  bool fermi = false;              // act as a compute capability 2.0 card with 6 GB: limits, sm20 module, FP32 GEMM, no graphs
  int max_registers = 0;           // 0 = no cap; 63 = as Fermi has
  bool graphs = true;
  std::string cublas_folder;       // "" = the loader's path and the usual places
  bool lock_host = true;           // false: leave host memory pageable, to measure what page-locking gains
  bool time_kernels = false;       // events around every launch and vendor product; see Device::kernel_times
};

struct DeviceInfo {
  std::string name;
  int compute_major = 2, compute_minor = 0;
  int multiprocessors = 1;
  int driver_version = 0;          // 12040 = CUDA 12.4
  std::uint64_t total_bytes = 0, free_bytes = 0;
  std::size_t shared_bytes = 48 * 1024;  // most shared memory of a block
  int tier = 20;                   // highest kernel tier in use
  bool graphs = false;
  bool clusters = false;           // blocks of a launch can run in clusters
  bool emulated = false;
};

/// What happened to one device of this machine; `line` is ready to log.
struct DeviceReport {
  int index = -1;  // -1: about the driver as a whole
  bool usable = false;
  std::string line;
};

/// One line a device, or one line that says why there is none. Never throws. `api` is filled when there is a driver.
std::vector<DeviceReport> list_devices();
/// The same over a given table (tests put fakes in).
std::vector<DeviceReport> list_devices(const CudaApi& api);

struct KernelTime {
  std::uint64_t launches = 0;
  double milliseconds = 0;
};

/// Page-locked host memory, or ordinary memory where the driver refuses to lock (then `pinned` is false and copies cost
/// about six times as much: 8.7 against 55 GB/s measured on a PCIe 5 link).
struct HostMemory {
  void* data = nullptr;
  std::size_t bytes = 0;
  bool pinned = false;
};

/// C[m][n] (row-major, leading dimension ldc) = alpha * A[m][k] * op(B) + beta * C, `batch` times with strides in elements.
/// op(B) is B[n][k]^T (b_transposed) or B[k][n]. The element type of A and B is f32, or bf16 when `bf16`; C is f32.
struct GemmCall {
  int m = 0, n = 0, k = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  float* c = nullptr;
  int lda = 0, ldb = 0, ldc = 0;
  bool b_transposed = true;
  bool bf16 = false;
  float alpha = 1.0f, beta = 0.0f;
  int batch = 1;
  long long stride_a = 0, stride_b = 0, stride_c = 0;
};

using Event = void*;
using Graph = void*;

class Device {
 public:
  explicit Device(const DeviceOptions& options) : options_(options) {}
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DeviceInfo& info() const { return info_; }
  const DeviceOptions& options() const { return options_; }

  /// Device memory, 256-byte aligned. Error{does_not_fit} with what was asked, what is in use and the ceiling.
  void* alloc(std::size_t bytes, std::string_view what);
  /// nullptr instead of the error.
  void* try_alloc(std::size_t bytes);
  void free(void* data) noexcept;
  std::uint64_t used_bytes() const { return used_bytes_; }
  std::uint64_t peak_bytes() const { return peak_bytes_; }
  std::uint64_t ceiling_bytes() const { return ceiling_bytes_; }

  virtual HostMemory alloc_host(std::size_t bytes) = 0;
  virtual void free_host(HostMemory& memory) noexcept = 0;
  /// Page-locks memory that exists; false (and nothing changed) where the driver refuses, as for file mappings.
  virtual bool lock_host(void* data, std::size_t bytes) = 0;
  virtual void unlock_host(void* data) noexcept = 0;

  /// Asynchronous when `host` is page-locked (then it must stay until the lane has passed); else it returns when done.
  virtual void copy_in(void* device, const void* host, std::size_t bytes, Lane lane) = 0;
  virtual void copy_out(void* host, const void* device, std::size_t bytes, Lane lane) = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes, Lane lane) = 0;
  virtual void fill(void* device, unsigned char value, std::size_t bytes, Lane lane) = 0;
  virtual void synchronize(Lane lane) = 0;

  virtual Event create_event() = 0;
  virtual void destroy_event(Event event) noexcept = 0;
  virtual void record(Event event, Lane lane) = 0;
  virtual void wait(Lane lane, Event event) = 0;  // later work of the lane waits for the event
  virtual void wait_host(Event event) = 0;        // returns once the event has passed
  virtual double elapsed_ms(Event from, Event to) = 0;  // waits for `to`

  /// True if a kernel of this name exists in a tier that is in use; `tier_of` says in which (0 = none).
  int tier_of(std::string_view kernel) const;

  /// Launches on the compute lane. Argument types must be exactly the kernel's (they travel as void*).
  template <class... A>
  void launch(const char* kernel, Dim grid, Dim block, std::size_t shared_bytes, A... arguments) {
    launch_clusters(kernel, grid, block, 1, shared_bytes, arguments...);
  }
  /// The same in clusters of `cluster` blocks that follow each other in x; more than 1 where info().clusters.
  template <class... A>
  void launch_clusters(const char* kernel, Dim grid, Dim block, unsigned cluster, std::size_t shared_bytes, A... arguments) {
    static_assert((sizeof(A) + ... + 0) <= 4000, "kernel parameters are limited to 4 KB on compute capability 2.0");
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
    launch_checked(kernel, grid, block, cluster, shared_bytes, pointers);
  }

  /// False where there is no vendor library (or not for this type); then nothing was done.
  virtual bool vendor_gemm(const GemmCall& call) = 0;
  virtual bool has_vendor_gemm(bool bf16) = 0;

  /// Launches and copies between begin and end are recorded instead of run.
  virtual void begin_capture() = 0;
  virtual Graph end_capture() = 0;
  /// Ends a capture without keeping it (after an error).
  virtual void abandon_capture() noexcept = 0;
  virtual void run_graph(Graph graph) = 0;
  virtual void destroy_graph(Graph graph) noexcept = 0;

  /// Under time_kernels: by kernel name, vendor products by shape ("vendor f32 947x1024x3584"). Waits for the compute lane.
  const std::map<std::string, KernelTime>& kernel_times();
  void reset_kernel_times();
  std::uint64_t launches() const { return launches_; }

 protected:
  virtual void* raw_alloc(std::size_t bytes) = 0;  // nullptr: out of memory
  virtual void raw_free(void* data) noexcept = 0;
  virtual void raw_launch(const char* kernel, Dim grid, Dim block, unsigned cluster, std::size_t shared_bytes, void** arguments) = 0;
  virtual int find_tier(std::string_view kernel) const = 0;
  void launch_checked(const char* kernel, Dim grid, Dim block, unsigned cluster, std::size_t shared_bytes, void** arguments);

  DeviceOptions options_;
  DeviceInfo info_;
  std::uint64_t ceiling_bytes_ = 0, used_bytes_ = 0, peak_bytes_ = 0, launches_ = 0;
  /// Runs `work`, which is given to the compute lane, and counts its time under `what()` where kernels are timed.
  template <class Name, class Work>
  void timed(const Name& what, const Work& work) {
    if (!options_.time_kernels) return work();
    Timed& entry = timed_.emplace_back(what(), create_event(), create_event());
    record(entry.begin, Lane::compute);
    work();
    record(timed_.back().end, Lane::compute);
  }

 private:
  struct Timed {
    std::string what;
    Event begin = nullptr, end = nullptr;
  };
  std::map<void*, std::size_t> allocations_;
  std::map<std::string, KernelTime> kernel_times_;
  std::vector<Timed> timed_;  // not yet in kernel_times_
};

/// Throws Error{device} if a launch would not run on compute capability 2.0 (grid, block, shared memory). `static_shared` is
/// the kernel's own part of the shared memory.
void check_fermi_limits(std::string_view kernel, Dim grid, Dim block, std::size_t shared_bytes);

/// Parses "sm20" .. "sm90"; Error{usage} for anything else. Empty = 0.
int parse_arch(std::string_view arch);

/// Opens GPU `options.index`. Error{device} says why it cannot be used.
std::unique_ptr<Device> open_device(const DeviceOptions& options);

}  // namespace heirloom::cuda
