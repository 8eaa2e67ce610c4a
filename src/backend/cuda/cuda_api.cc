#include "backend/cuda/cuda_api.h"

#include <dlfcn.h>
#include <glob.h>

#include <vector>

namespace heirloom::cuda {
namespace {

template <typename Function>
void resolve(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
}

std::vector<std::string> cublas_folders(const std::string& folder) {
  if (!folder.empty()) return {folder.back() == '/' ? folder : folder + "/"};
  std::vector<std::string> folders{""};
  glob_t found{};
  for (const char* pattern : {"/usr/local/cuda*/lib64/", "/usr/local/cuda*/targets/x86_64-linux/lib/",
                              "/usr/lib/x86_64-linux-gnu/nvidia/", "/opt/cuda/lib64/"}) {
    if (glob(pattern, 0, nullptr, &found) == 0) {
      for (std::size_t i = 0; i < found.gl_pathc; ++i) folders.emplace_back(found.gl_pathv[i]);
    }
    globfree(&found);
  }
  return folders;
}

}  // namespace

std::string load_cuda_api(CudaApi& api) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) return "no NVIDIA driver: libcuda.so.1 was not found";
#define HEIRLOOM_MUST(name, suffix, parameters) \
  resolve(library, #name suffix, api.name);     \
  if (!api.name) return "the NVIDIA driver is too old: libcuda.so.1 has no " #name " (R319 or newer is needed)";
#define HEIRLOOM_MAY(name, suffix, parameters) resolve(library, #name suffix, api.name);
  HEIRLOOM_CUDA_REQUIRED(HEIRLOOM_MUST)
  HEIRLOOM_CUDA_OPTIONAL(HEIRLOOM_MAY)
#undef HEIRLOOM_MUST
#undef HEIRLOOM_MAY
  return {};
}

std::string load_cublas_api(CublasApi& api, const std::string& folder) {
  void* library = nullptr;
  for (const std::string& where : cublas_folders(folder)) {
    for (const char* version : {"13", "12", "11", "10", "9.2", "9.1", "9.0", "8.0"}) {  // 8.0 is the last with Fermi code
      // cuBLAS since 10.1 needs cublasLt, which the loader does not look for beside it.
      if (!where.empty()) dlopen((where + "libcublasLt.so." + version).c_str(), RTLD_NOW | RTLD_GLOBAL);
      library = dlopen((where + "libcublas.so." + version).c_str(), RTLD_NOW);
      if (library) break;
    }
    if (library) break;
  }
  if (!library) return "no cuBLAS (libcublas.so.13 to .so.8.0) was found";
#define HEIRLOOM_MUST(name, suffix, parameters) \
  resolve(library, #name suffix, api.name);     \
  if (!api.name) return "cuBLAS has no " #name;
#define HEIRLOOM_MAY(name, suffix, parameters) resolve(library, #name suffix, api.name);
  HEIRLOOM_CUBLAS_REQUIRED(HEIRLOOM_MUST)
  HEIRLOOM_CUBLAS_OPTIONAL(HEIRLOOM_MAY)
#undef HEIRLOOM_MUST
#undef HEIRLOOM_MAY
  return {};
}

}  // namespace heirloom::cuda
