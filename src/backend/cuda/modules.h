// The PTX modules that the build embedded (cmake/ptx.cmake writes the table): one per kernel file and tier, with the kernels
// that each defines. The loader takes, for a name, the module of the highest tier in use that has it.
#pragma once

#include <span>
#include <string_view>

namespace heirloom::cuda {

struct Module {
  std::string_view name;     // file name without extension: "gemv_q8_0", "attention_prefill.sm80"
  int tier;                  // 20, 61, 80, 90
  std::string_view kernels;  // names separated by spaces
  const char* ptx;           // zero-terminated
  std::size_t ptx_bytes;
};

std::span<const Module> modules();

}  // namespace heirloom::cuda
