// The CUDA driver API and cuBLAS as tables of function pointers filled by dlopen: no CUDA header, nothing to link, and a test
// can put its own functions in. Required entries exist since CUDA 5.5 (driver R319), so the last Fermi driver (R390) has them.
#pragma once

#include <cstddef>
#include <string>

namespace heirloom::cuda {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = void*;
using CUmodule = void*;
using CUfunction = void*;
using CUstream = void*;
using CUevent = void*;
using CUgraph = void*;
using CUgraphExec = void*;
using CublasHandle = void*;

constexpr CUresult kCudaErrorNoDevice = 100;
constexpr CUresult kCudaErrorOutOfMemory = 2;
constexpr CUresult kCudaErrorNotFound = 500;

// From the driver API reference, "Data types used by CUDA driver".
constexpr int kAttributeMultiprocessors = 16;
constexpr int kAttributeMaxShared = 97;  // of a block that asks for it (CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
constexpr int kAttributeComputeMajor = 75;
constexpr int kAttributeComputeMinor = 76;
constexpr int kAttributeComputeMode = 20;
constexpr int kComputeModeProhibited = 2;
constexpr int kFunctionSharedBytes = 1;
constexpr int kFunctionLocalBytes = 3;
constexpr int kFunctionRegisters = 4;
constexpr int kFunctionMaxDynamicShared = 8;
constexpr int kJitErrorLog = 5;
constexpr int kJitErrorLogBytes = 6;
constexpr int kJitMaxRegisters = 0;
constexpr int kLaunchClusterDimension = 4, kLaunchProgrammaticSerialization = 6;
constexpr int kCaptureRelaxed = 2;
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kHostAllocPortable = 1;

struct LaunchAttribute {  // CUlaunchAttribute
  int id;
  char padding[4];
  union {
    char bytes[64];
    int value;
    unsigned dimensions[3];
  };
};
struct LaunchConfig {  // CUlaunchConfig
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  CUstream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

// X(name, suffix of the exported symbol, parameters)
#define HEIRLOOM_CUDA_REQUIRED(X)                                                                                      \
  X(cuInit, "", (unsigned))                                                                                            \
  X(cuDriverGetVersion, "", (int*))                                                                                    \
  X(cuDeviceGetCount, "", (int*))                                                                                      \
  X(cuDeviceGet, "", (CUdevice*, int))                                                                                 \
  X(cuDeviceGetName, "", (char*, int, CUdevice))                                                                       \
  X(cuDeviceGetAttribute, "", (int*, int, CUdevice))                                                                   \
  X(cuDeviceTotalMem, "_v2", (size_t*, CUdevice))                                                                      \
  X(cuMemGetInfo, "_v2", (size_t*, size_t*))                                                                           \
  X(cuCtxCreate, "_v2", (CUcontext*, unsigned, CUdevice))                                                              \
  X(cuCtxDestroy, "_v2", (CUcontext))                                                                                  \
  X(cuCtxSetCurrent, "", (CUcontext))                                                                                  \
  X(cuModuleUnload, "", (CUmodule))                                                                                    \
  X(cuModuleLoadDataEx, "", (CUmodule*, const void*, unsigned, int*, void**))                                          \
  X(cuModuleGetFunction, "", (CUfunction*, CUmodule, const char*))                                                     \
  X(cuFuncGetAttribute, "", (int*, int, CUfunction))                                                                   \
  X(cuMemAlloc, "_v2", (CUdeviceptr*, size_t))                                                                         \
  X(cuMemFree, "_v2", (CUdeviceptr))                                                                                   \
  X(cuMemHostAlloc, "", (void**, size_t, unsigned))                                                                    \
  X(cuMemFreeHost, "", (void*))                                                                                        \
  X(cuMemHostRegister, "_v2", (void*, size_t, unsigned))                                                               \
  X(cuMemHostUnregister, "", (void*))                                                                                  \
  X(cuMemcpyHtoDAsync, "_v2", (CUdeviceptr, const void*, size_t, CUstream))                                            \
  X(cuMemcpyDtoHAsync, "_v2", (void*, CUdeviceptr, size_t, CUstream))                                                  \
  X(cuMemcpyDtoDAsync, "_v2", (CUdeviceptr, CUdeviceptr, size_t, CUstream))                                            \
  X(cuMemsetD8Async, "", (CUdeviceptr, unsigned char, size_t, CUstream))                                               \
  X(cuStreamCreate, "", (CUstream*, unsigned))                                                                         \
  X(cuStreamDestroy, "_v2", (CUstream))                                                                                \
  X(cuStreamSynchronize, "", (CUstream))                                                                               \
  X(cuStreamWaitEvent, "", (CUstream, CUevent, unsigned))                                                              \
  X(cuEventCreate, "", (CUevent*, unsigned))                                                                           \
  X(cuEventDestroy, "_v2", (CUevent))                                                                                  \
  X(cuEventRecord, "", (CUevent, CUstream))                                                                            \
  X(cuEventSynchronize, "", (CUevent))                                                                                 \
  X(cuEventElapsedTime, "", (float*, CUevent, CUevent))                                                                \
  X(cuLaunchKernel, "",                                                                                                \
    (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**, void**))
// Null in old drivers: error texts came with CUDA 6, graphs with 10 (this way to instantiate with 11.4), cuLaunchKernelEx 11.8.
#define HEIRLOOM_CUDA_OPTIONAL(X)                                                                                      \
  X(cuGetErrorString, "", (CUresult, const char**))                                                                    \
  X(cuStreamBeginCapture, "_v2", (CUstream, int))                                                                      \
  X(cuStreamEndCapture, "", (CUstream, CUgraph*))                                                                      \
  X(cuGraphInstantiateWithFlags, "", (CUgraphExec*, CUgraph, unsigned long long))                                      \
  X(cuGraphLaunch, "", (CUgraphExec, CUstream))                                                                        \
  X(cuGraphDestroy, "", (CUgraph))                                                                                     \
  X(cuGraphExecDestroy, "", (CUgraphExec))                                                                             \
  X(cuFuncSetAttribute, "", (CUfunction, int, int))                                                                    \
  X(cuLaunchKernelEx, "", (const LaunchConfig*, CUfunction, void**, void**))

#define HEIRLOOM_CUBLAS_REQUIRED(X)                                                                                    \
  X(cublasCreate, "_v2", (CublasHandle*))                                                                              \
  X(cublasDestroy, "_v2", (CublasHandle))                                                                              \
  X(cublasGetVersion, "_v2", (CublasHandle, int*))                                                                     \
  X(cublasSetStream, "_v2", (CublasHandle, CUstream))                                                                  \
  X(cublasSgemm, "_v2",                                                                                                \
    (CublasHandle, int, int, int, int, int, const float*, const float*, int, const float*, int, const float*, float*,  \
     int))
// cublasGemmEx and the strided batch since CUDA 8; the compute type became another enumeration in 11.
#define HEIRLOOM_CUBLAS_OPTIONAL(X)                                                                                    \
  X(cublasGemmEx, "",                                                                                                  \
    (CublasHandle, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int, const void*,    \
     void*, int, int, int, int))                                                                                       \
  X(cublasSgemmStridedBatched, "",                                                                                     \
    (CublasHandle, int, int, int, int, int, const float*, const float*, int, long long, const float*, int, long long,  \
     const float*, float*, int, long long, int))                                                                       \
  X(cublasGemmStridedBatchedEx, "",                                                                                    \
    (CublasHandle, int, int, int, int, int, const void*, const void*, int, int, long long, const void*, int, int,      \
     long long, const void*, void*, int, int, long long, int, int, int))

struct CudaApi {
#define HEIRLOOM_MEMBER(name, suffix, parameters) CUresult(*name) parameters = nullptr;
  HEIRLOOM_CUDA_REQUIRED(HEIRLOOM_MEMBER)
  HEIRLOOM_CUDA_OPTIONAL(HEIRLOOM_MEMBER)
#undef HEIRLOOM_MEMBER
  bool has_graphs() const {
    return cuStreamBeginCapture && cuStreamEndCapture && cuGraphInstantiateWithFlags && cuGraphLaunch && cuGraphDestroy &&
           cuGraphExecDestroy;
  }
};

struct CublasApi {
#define HEIRLOOM_MEMBER(name, suffix, parameters) CUresult(*name) parameters = nullptr;
  HEIRLOOM_CUBLAS_REQUIRED(HEIRLOOM_MEMBER)
  HEIRLOOM_CUBLAS_OPTIONAL(HEIRLOOM_MEMBER)
#undef HEIRLOOM_MEMBER
};

/// Fills `api` from libcuda.so.1. Empty string, or why it could not ("no NVIDIA driver ...").
std::string load_cuda_api(CudaApi& api);

/// Fills `api` from the first of libcublas.so.13 .. 8.0 found in `folder` (empty: the loader's path, then the folders where
/// toolkits and Python wheels put it). Call with a context current. Empty string, or why it could not.
std::string load_cublas_api(CublasApi& api, const std::string& folder);

}  // namespace heirloom::cuda
