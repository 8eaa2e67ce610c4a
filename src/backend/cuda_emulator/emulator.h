// CPU emulator of the kernel language: launches a registered kernel over a grid, one fiber per GPU thread of a block. Under
// AddressSanitizer every out-of-bounds access of global, static shared and dynamic shared memory is reported with its kernel
// line; a barrier that part of a block misses is an error with the counts. It owns no tensors and knows no operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/half.h"

namespace heirloom::cuda {
class Device;
struct DeviceOptions;
}  // namespace heirloom::cuda

namespace heirloom::emulator {

struct Position {
  int thread[2], block[3], block_size[2], grid[3];
};
// Which GPU thread runs now. constinit: no initialisation wrapper, whose result UBSan takes for a null pointer.
extern constinit thread_local Position current;

/// Exactly as many bytes as the launch asked for, filled with 0xFF (NaN) before each block.
void* dynamic_shared();
/// The same place of the dynamic shared memory of block `rank` of this cluster.
void* in_block(const void* shared, int rank);
/// Waits until every thread of the block is here; of a cluster, whose blocks pass the same barriers, until every thread of it is.
void barrier();
/// The value that thread (linear index ^ mask) passed; reached by the whole block.
float exchange(float value, int mask);
/// D += A B of one warp, m16n8k16, fragments laid out as PTX's mma.sync does; reached by the whole block.
void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);

/// The same with m16n8k8 and operands that are floats of 10 bits of mantissa.
void mma_tf32(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);

struct Kernel {
  int max_threads = 0;
  std::function<void(void**)> call;
  std::vector<std::size_t> argument_bytes;
};
/// Every compiled kernel, by name, then tier (20, 61, 80).
std::map<std::string, std::map<int, Kernel>>& kernels();

template <class... A, std::size_t... I>
void call(void (*f)(A...), void** p, std::index_sequence<I...>) {
  f(*static_cast<A*>(p[I])...);
}
template <class... A>
bool add(const char* name, int tier, int threads, void (*f)(A...)) {
  kernels()[name][tier] = {threads, [f](void** p) { call(f, p, std::index_sequence_for<A...>()); }, {sizeof(A)...}};
  return true;
}

/// Order in which the threads of a block run between two barriers; results must not depend on it.
enum class Order { ascending, descending };

/// `cluster`: so many blocks that follow each other in x run together.
void run_kernel(const std::string& name, const Kernel& kernel, const unsigned grid[3], const unsigned block[3], unsigned cluster,
            std::size_t shared_bytes, void** arguments, Order order);

/// A cuda::Device whose launches run here. Device memory is host memory, first filled with 0xFF.
std::unique_ptr<cuda::Device> open(const cuda::DeviceOptions& options, Order order = Order::ascending);

}  // namespace heirloom::emulator
