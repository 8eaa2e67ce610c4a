// What the parts of the study share: opening backends as the options ask, timing, and adding rows to a part.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "engine/open_backend.h"
#include "model/model_files.h"
#include "tools/study/study.h"

namespace heirloom::tools {

struct SyntheticOptions;

class StudyBench {
 public:
  StudyBench(const StudyOptions& options, const DeviceChoice& device) : options_(options), device_(device) {}

  void start(StudyPart& part) {
    part_ = &part;
    first_ = nullptr;
  }

  bool has_gpu() const { return device_.cuda >= 0; }
  const EngineOptions& engine() const { return options_.engine; }
  /// The GPU of --device with --profile, --cuda-arch and --vram; `gemm` of the settings, where set, goes before --gemm.
  template <class Gpu = cuda::CudaBackend>
  std::unique_ptr<Gpu> open_gpu(cuda::CudaBackendOptions settings = {}, bool lock_host = true) const {
    apply_gemm(settings);
    return std::make_unique<Gpu>(cuda::open_device(device_options(lock_host)), settings);
  }
  std::unique_ptr<cuda::CudaBackend> open_gpu(cuda::GemmType gemm) const {
    cuda::CudaBackendOptions settings;
    settings.gemm = gemm;
    return open_gpu(settings);
  }
  /// With no kernels above `arch`.
  std::unique_ptr<cuda::CudaBackend> open_gpu(cuda::GemmType gemm, const std::string& arch) const {
    cuda::DeviceOptions device = device_options(true);
    device.arch = arch;
    cuda::CudaBackendOptions settings;
    settings.gemm = gemm;
    return std::make_unique<cuda::CudaBackend>(cuda::open_device(device), settings);
  }
  std::unique_ptr<cpu::CpuBackend> open_cpu() const { return heirloom::open_cpu(options_.engine); }
  /// True, and the part says why, when there is no GPU.
  bool skipped_without_gpu(const std::string& what);
  void skip(std::string sentence) { part_->skipped.push_back(std::move(sentence)); }

  /// Milliseconds of one call of `run`: one call that is not counted, then samples of as many calls as fill 10 ms. Work that takes
  /// longer than five seconds is measured once, the uncounted call being that sample.
  StudyFigure time(ops::Backend& backend, const std::function<void()>& run) const;
  /// The same as a rate, `amount` of `unit` a second: 947 tokens as "tok/s".
  StudyFigure rate(ops::Backend& backend, double amount, std::string unit, const std::function<void()>& run) const;

  /// Adds a row that is compared with the group's first one: the row after begin_group or the part's start.
  StudyRow& add(std::string what, StudyFigure figure, std::string note = "");
  void begin_group() { first_ = nullptr; }

 private:
  cuda::DeviceOptions device_options(bool lock_host) const;
  void apply_gemm(cuda::CudaBackendOptions& settings) const;

  const StudyOptions& options_;
  const DeviceChoice& device_;
  StudyPart* part_ = nullptr;
  std::unique_ptr<StudyFigure> first_;
};

/// A model bound to a backend, with the files it came from.
std::unique_ptr<model::Model> bind_synthetic(const SyntheticOptions& options, ops::Backend& backend);

// The parts, by file.
void study_gemm(StudyBench& bench);          // operation_parts.cc
void study_dequantise(StudyBench& bench);
void study_copies(StudyBench& bench);
void study_delta(StudyBench& bench);         // mixer_parts.cc
void study_attention(StudyBench& bench);
void study_decode(StudyBench& bench);        // language_parts.cc
void study_head(StudyBench& bench);
void study_prefill(StudyBench& bench);
void study_image(StudyBench& bench);         // picture_parts.cc
void study_question(StudyBench& bench);
void study_share(StudyBench& bench);         // language_parts.cc
void study_needle(StudyBench& bench);        // needle_part.cc

/// The vendor's rate for `m` rows of activations and a weight of [n, k], in the arithmetic of `backend`; false without cuBLAS.
bool vendor_rate(StudyBench& bench, cuda::CudaBackend& backend, int m, int n, int k, bool bf16, StudyFigure& tflops);

}  // namespace heirloom::tools
