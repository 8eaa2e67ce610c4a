// The one language of our kernels, with two compilers behind it:
//  * clang -x cuda --cuda-device-only -nocudainc -nocudalib  -> PTX; no CUDA toolkit is needed (cmake/ptx.cmake)
//  * the host compiler with -DGPU_EMULATOR                   -> the CPU emulator (backend/cuda_emulator)
// Kernels use KERNEL, DEVICE, SHARED, DYN_SHARED, UNROLL, tid_x().., gpu_sync(), the functions below and plain C++.
// Everything outside `#if GPU_TIER` is compute capability 2.0 (CUDA C Programming Guide, "Compute Capabilities" table: no
// shuffle, no fp16 arithmetic, 63 registers, 48 KiB shared, grid <= 65535). Rules that one source for both needs:
//  * no early return before a barrier; every thread of a block reaches each gpu_sync();
//  * no warp-synchronous code (neither the emulator nor GPUs since Volta run a warp in step);
//  * blocks never wait for each other; a 16-byte struct is copied member by member (else clang splits the access);
//  * builtins instead of asm(): clang treats every asm() as convergent and stops unrolling run-time loops.
#pragma once

typedef unsigned char u8;
typedef signed char s8;
typedef unsigned short u16;
typedef unsigned u32;
typedef unsigned long long u64;
typedef long long s64;
struct alignas(16) F4 { float x, y, z, w; };  // one 16-byte access: ld.global.v4.f32
struct alignas(8) F2 { float x, y; };
struct alignas(16) U4 { u32 x, y, z, w; };
struct alignas(8) U2 { u32 x, y; };

#ifndef GPU_TIER
#define GPU_TIER 20  // 61: dp4a; 80: bf16 mma, shuffles; 90: programmatic dependent launch, clusters of blocks
#endif

#ifndef GPU_EMULATOR
// KERNEL(name, most threads of a block, parameters...) { body }
#define KERNEL(name, threads, ...) extern "C" __attribute__((global, launch_bounds(threads))) void name(__VA_ARGS__)
// The same with at least `blocks` of its blocks on a multiprocessor: caps the registers.
#define KERNEL_TOGETHER(name, threads, blocks, ...) \
  extern "C" __attribute__((global, launch_bounds(threads, blocks))) void name(__VA_ARGS__)
#define DEVICE static inline __attribute__((device, always_inline))
#define DEVICE_M inline __attribute__((device, always_inline))  // member functions
#define CONSTANT static const __attribute__((constant))
#define SHARED __attribute__((shared))
#define DYN_SHARED(T, name) extern __attribute__((shared, aligned(16))) u8 gpu_dyn_shared[]; T* name = (T*)gpu_dyn_shared
#define UNROLL _Pragma("unroll")
#define UNROLL2 _Pragma("unroll 2")
#define UNROLL4 _Pragma("unroll 4")
#define NO_UNROLL _Pragma("unroll 1")
DEVICE int tid_x() { return __nvvm_read_ptx_sreg_tid_x(); }
DEVICE int tid_y() { return __nvvm_read_ptx_sreg_tid_y(); }
DEVICE int ntid_x() { return __nvvm_read_ptx_sreg_ntid_x(); }
DEVICE int bid_x() { return __nvvm_read_ptx_sreg_ctaid_x(); }
DEVICE int bid_y() { return __nvvm_read_ptx_sreg_ctaid_y(); }
DEVICE int bid_z() { return __nvvm_read_ptx_sreg_ctaid_z(); }
DEVICE int nbid_x() { return __nvvm_read_ptx_sreg_nctaid_x(); }
DEVICE int nbid_y() { return __nvvm_read_ptx_sreg_nctaid_y(); }
DEVICE void gpu_sync() { asm volatile("bar.sync 0;" ::: "memory"); }  // not __syncthreads(): clang moves shared loads over it
DEVICE float gpu_exp2(float x) { return __nvvm_ex2_approx_f(x); }
DEVICE float gpu_rsqrt_approx(float x) { return __nvvm_rsqrt_approx_f(x); }
DEVICE float gpu_reciprocal_approx(float x) {
  float r;
  asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
DEVICE float gpu_fma(float a, float b, float c) { return __nvvm_fma_rn_f(a, b, c); }
DEVICE float gpu_max(float a, float b) { return __nvvm_fmax_f(a, b); }
DEVICE float gpu_abs(float x) { return __builtin_fabsf(x); }
DEVICE float gpu_sqrt(float x) { return __nvvm_sqrt_rn_f(x); }
DEVICE float gpu_round(float x) { return __builtin_rintf(x); }  // cvt.rni
DEVICE float as_f32(u32 x) { return __builtin_bit_cast(float, x); }
DEVICE u32 as_u32(float x) { return __builtin_bit_cast(u32, x); }
DEVICE u32 gpu_prmt(u32 a, u32 b, u32 selector) { return __nvvm_prmt(a, b, selector); }
// cvt.f32.f16 / cvt.rn.f16.f32 are legal on sm_20 (storage conversion only; fp16 arithmetic is not).
DEVICE float half_to_f32(u16 h) { return __builtin_bit_cast(__fp16, h); }
DEVICE u16 f32_to_half(float f) { return __builtin_bit_cast(u16, (__fp16)f); }
DEVICE int gpu_atomic_add(int* p, int v) { return __nvvm_atom_add_gen_i(p, v); }
#if GPU_TIER >= 80  // reached by whole warps (in the emulator: by the whole block)
DEVICE float gpu_shuffle_xor(float v, int mask) {
  return as_f32((u32)__nvvm_shfl_sync_bfly_i32(-1, (int)as_u32(v), mask, 31));
}
/// sum + the products of the four signed bytes of a and b.
DEVICE int gpu_dp4a(u32 a, u32 b, int sum) {
  int r;
  asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(sum));
  return r;
}
DEVICE void gpu_mma_bf16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/// Rounded to the 10 bits of mantissa that a TF32 operand has, ties away from zero.
DEVICE u32 f32_to_tf32(float v) {
  u32 r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(v));
  return r;
}
DEVICE void gpu_mma_tf32(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif
#else
#include "backend/cuda_emulator/kernel_language.h"
#endif

DEVICE int gpu_min_i(int a, int b) { return a < b ? a : b; }
DEVICE int gpu_max_i(int a, int b) { return a > b ? a : b; }

/// e^x to 1 ulp or two: ex2.approx of a product carries the rounding error of x * log2(e), which at x = -30 is already 2e-6;
/// the second term gives it back. Saturates at both ends, keeps NaN.
DEVICE float gpu_exp(float x) {
  x = x < -110.0f ? -110.0f : x;
  x = x > 100.0f ? 100.0f : x;
  const float high = x * 1.44269502f;
  const float low = gpu_fma(x, 1.44269502f, -high) + x * 1.92596299e-8f;
  return gpu_exp2(high) * gpu_fma(low, 0.693147181f, 1.0f);
}
DEVICE float gpu_sigmoid(float x) { return 1.0f / (1.0f + gpu_exp(-x)); }
DEVICE float gpu_silu(float x) { return x / (1.0f + gpu_exp(-x)); }
/// log(1 + e^x) = max(x, 0) + log1p(e^-|x|), and log1p(e) = 2 atanh(e / (2 + e)): lg2.approx alone is 1e-5 off for small e.
DEVICE float gpu_softplus(float x) {
  const float e = gpu_exp(x < 0 ? x : -x);
  const float s = e / (2.0f + e), q = s * s;
  float p = 1.0f / 15.0f;
  p = gpu_fma(p, q, 1.0f / 13.0f);
  p = gpu_fma(p, q, 1.0f / 11.0f);
  p = gpu_fma(p, q, 1.0f / 9.0f);
  p = gpu_fma(p, q, 1.0f / 7.0f);
  p = gpu_fma(p, q, 0.2f);
  p = gpu_fma(p, q, 1.0f / 3.0f);
  p = gpu_fma(p, q, 1.0f);
  return (x > 0 ? x : 0.0f) + 2.0f * s * p;
}
DEVICE float bf16_to_f32(u16 b) { return as_f32((u32)b << 16); }
DEVICE u16 f32_to_bf16(float f) {
  const u32 u = as_u32(f);
  return (u16)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}
/// Two floats as a word of bf16, the first one low; ties to even either way.
DEVICE u32 f32x2_to_bf16x2(float low, float high) {
#if GPU_TIER >= 80 && !defined(GPU_EMULATOR)
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
#else
  return (u32)f32_to_bf16(low) | (u32)f32_to_bf16(high) << 16;
#endif
}
/// The s-th signed byte of w as a float in 2 instructions: 0x4B0000bb is 2^23 + bb. Call with w ^ 0x80808080.
DEVICE float biased_byte(u32 w, u32 selector) { return as_f32(gpu_prmt(w, 0x4B000000u, selector)) - 8388736.0f; }
/// Unsigned byte to float without a conversion instruction (16 a clock on Fermi against 32 for the others).
DEVICE float unsigned_byte(u32 w, u32 selector) { return as_f32(gpu_prmt(w, 0x4B000000u, selector)) - 8388608.0f; }

// A programmatic dependent launch (sm_90) starts a kernel while the one before it still runs. `gpu_wait_inputs` must come
// before the first access to anything an earlier kernel wrote or still reads; `gpu_let_next_start` may come at any time.
#if GPU_TIER >= 90 && !defined(GPU_EMULATOR)
DEVICE void gpu_wait_inputs() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEVICE void gpu_let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
#else
DEVICE void gpu_wait_inputs() {}
DEVICE void gpu_let_next_start() {}
#endif

// A cluster (sm_90): neighbouring blocks that run at the same time and write to each other's shared memory (dynamic shared memory only:
// the emulator has one copy of static variables). Its blocks pass the same barriers, gpu_sync() included. A Mailbox counts the bytes
// that are sent to a block, so that nobody waits for more than what he needs; fences and barriers of the cluster cost a microsecond.
typedef u64 Mailbox;
#if GPU_TIER >= 90 && !defined(GPU_EMULATOR)
DEVICE u32 gpu_shared_address(const void* shared) {
  u64 address;
  asm("cvta.to.shared.u64 %0, %1;" : "=l"(address) : "l"(shared));
  return (u32)address;
}
DEVICE u32 gpu_in_block(u32 shared, int rank) {
  u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(rank));
  return there;
}
/// By one thread, before gpu_cluster_arrive(): `bytes` will be sent to `box` of this block.
DEVICE void gpu_expect(Mailbox* box, int bytes) {
  const u32 at = gpu_shared_address(box);
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n\tfence.mbarrier_init.release.cluster;\n\t"
               "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
/// All threads, in two parts: then every block of the cluster runs and its mailboxes are ready.
DEVICE void gpu_cluster_arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }
DEVICE void gpu_cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
/// Writes `value` to `shared` of block `rank`, to be found there after gpu_receive(box).
DEVICE void gpu_send(float* shared, int rank, float value, Mailbox* box) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(gpu_in_block(gpu_shared_address(shared), rank)),
               "r"(as_u32(value)), "r"(gpu_in_block(gpu_shared_address(box), rank)) : "memory");
}
DEVICE void gpu_send(F4* shared, int rank, F4 v, Mailbox* box) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                   gpu_in_block(gpu_shared_address(shared), rank)), "r"(as_u32(v.x)), "r"(as_u32(v.y)), "r"(as_u32(v.z)), "r"(as_u32(v.w)),
               "r"(gpu_in_block(gpu_shared_address(box), rank)) : "memory");
}
/// Starts a copy of a multiple of 16 bytes to this block's shared memory, by one thread; found after gpu_receive(box).
DEVICE void gpu_send_global(void* shared, const void* global, int bytes, Mailbox* box) {
  u64 from;
  asm("cvta.to.global.u64 %0, %1;" : "=l"(from) : "l"(global));
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(gpu_shared_address(shared)),
               "l"(from), "r"(bytes), "r"(gpu_shared_address(box)) : "memory");
}
/// Waits until what was expected in `box` is there.
DEVICE void gpu_receive(Mailbox* box) {
  u32 done = 0;
  while (!done) {
    asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                 : "=r"(done) : "r"(gpu_shared_address(box)) : "memory");
  }
}
/// `condition`, the same for all threads of a warp: what hangs on it is skipped by the other warps.
DEVICE bool gpu_warp_has(bool condition) { return condition; }
#elif GPU_TIER >= 90
DEVICE void gpu_expect(Mailbox*, int) {}
DEVICE void gpu_cluster_arrive() {}
DEVICE void gpu_cluster_wait() { heirloom::emulator::barrier(); }
template <class T>
DEVICE void gpu_send(T* shared, int rank, T value, Mailbox*) { *static_cast<T*>(heirloom::emulator::in_block(shared, rank)) = value; }
DEVICE void gpu_send_global(void* shared, const void* global, int bytes, Mailbox*) { __builtin_memcpy(shared, global, bytes); }
DEVICE void gpu_receive(Mailbox*) { heirloom::emulator::barrier(); }
DEVICE bool gpu_warp_has(bool) { return true; }  // shuffles are reached by the whole block here
#endif
