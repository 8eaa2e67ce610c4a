// Fibers: a kernel without a barrier runs its threads as a plain loop on one stack; each thread that waits at a barrier keeps
// a stack of its own until the block is done. The switch is hand-written on x86-64 because swapcontext makes a system call.
#include "backend/cuda_emulator/emulator.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <vector>

#include "base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#define EMULATOR_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMULATOR_ASAN 1
#endif
#endif
#ifdef EMULATOR_ASAN
#include <sanitizer/common_interface_defs.h>
#else
static void __sanitizer_start_switch_fiber(void**, const void*, std::size_t) {}
static void __sanitizer_finish_switch_fiber(void*, const void**, std::size_t*) {}
#endif

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace heirloom::emulator {

constinit thread_local Position current;

namespace {

constexpr std::size_t kStackBytes = 128 << 10;

#if defined(__x86_64__)
struct Context {
  void* stack_pointer = nullptr;
};
extern "C" void heirloom_emulator_switch(void** save, void* to);
asm(R"(.text
.globl heirloom_emulator_switch
heirloom_emulator_switch: push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15
    mov %rsp,(%rdi); mov %rsi,%rsp
    pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp; ret
)");
void make_context(Context& context, char* stack, void (*function)()) {
  void** top = reinterpret_cast<void**>(stack + kStackBytes) - 8;  // so that rsp % 16 == 8 at the entry of `function`
  for (int i = 0; i < 8; ++i) top[i] = i == 6 ? reinterpret_cast<void*>(function) : nullptr;
  context.stack_pointer = top;
}
void switch_context(Context& from, Context& to) { heirloom_emulator_switch(&from.stack_pointer, to.stack_pointer); }
#else
struct Context {
  ucontext_t ucontext;
};
void make_context(Context& context, char* stack, void (*function)()) {
  getcontext(&context.ucontext);
  context.ucontext.uc_stack.ss_sp = stack;
  context.ucontext.uc_stack.ss_size = kStackBytes;
  context.ucontext.uc_link = nullptr;
  makecontext(&context.ucontext, function, 0);
}
void switch_context(Context& from, Context& to) { swapcontext(&from.ucontext, &to.ucontext); }
#endif

struct Fiber {
  Context context;
  char* stack = nullptr;
  int thread = -1;  // the GPU thread that waits on this stack, -1: none
  bool waited = false;
  void* fake_stack = nullptr;
};

struct Worker {
  Context main;
  std::vector<Fiber> fibers;
  const std::function<void()>* body = nullptr;
  int threads = 0, started = 0, finished = 0, running = 0;  // of the block, or of all blocks of a cluster
  int block_threads = 0, first_block = 0, rank = 0;          // the running thread's block is first_block + rank
  Order order = Order::ascending;
  void* fake_stack = nullptr;
  const void* main_stack = nullptr;
  std::size_t main_stack_bytes = 0;
  std::vector<std::vector<char>> dynamic_shared;  // of each block of a cluster
  std::vector<float> slots;  // what each thread passed to exchange or mma_bf16
  std::vector<std::uint32_t> fragments;
  ~Worker() {
    for (Fiber& fiber : fibers) std::free(fiber.stack);
  }
};
thread_local Worker worker;

void set_thread(int index) {
  int thread = worker.order == Order::descending ? worker.threads - 1 - index : index;
  worker.rank = thread / worker.block_threads;
  thread %= worker.block_threads;
  current.block[0] = worker.first_block + worker.rank;
  current.thread[0] = thread % current.block_size[0];
  current.thread[1] = thread / current.block_size[0];
}

void leave(Fiber& fiber, bool dies) {
  __sanitizer_start_switch_fiber(dies ? nullptr : &fiber.fake_stack, worker.main_stack, worker.main_stack_bytes);
  switch_context(fiber.context, worker.main);
  __sanitizer_finish_switch_fiber(fiber.fake_stack, &worker.main_stack, &worker.main_stack_bytes);
}

// A fiber runs threads one after another until one of them waits at a barrier, and ends with that one.
void fiber_entry() {
  __sanitizer_finish_switch_fiber(nullptr, &worker.main_stack, &worker.main_stack_bytes);
  Fiber& fiber = worker.fibers[static_cast<std::size_t>(worker.running)];
  for (fiber.waited = false; worker.started < worker.threads && !fiber.waited; ++worker.finished) {
    fiber.thread = worker.started++;
    set_thread(fiber.thread);
    (*worker.body)();
  }
  fiber.thread = -1;
  leave(fiber, true);
}

void resume(int index) {
  worker.running = index;
  Fiber& fiber = worker.fibers[static_cast<std::size_t>(index)];
  if (fiber.thread >= 0) set_thread(fiber.thread);
  __sanitizer_start_switch_fiber(&worker.fake_stack, fiber.stack, kStackBytes);
  switch_context(worker.main, fiber.context);
  __sanitizer_finish_switch_fiber(worker.fake_stack, nullptr, nullptr);
}

void run_block(const std::string& name, int threads, const std::function<void()>& body) {
  worker.body = &body;
  worker.threads = threads;
  worker.started = worker.finished = 0;
  if (worker.fibers.size() < static_cast<std::size_t>(threads)) worker.fibers.resize(static_cast<std::size_t>(threads));
  int used = 0;
  for (; worker.started < threads; ++used) {  // as many fibers as threads that wait at a barrier
    Fiber& fiber = worker.fibers[static_cast<std::size_t>(used)];
    if (!fiber.stack) fiber.stack = static_cast<char*>(std::malloc(kStackBytes));
    HEIRLOOM_CHECK(fiber.stack != nullptr);
    make_context(fiber.context, fiber.stack, fiber_entry);
    resume(used);
  }
  while (worker.finished < threads) {
    int waiting = 0;
    for (int i = 0; i < used; ++i) waiting += worker.fibers[static_cast<std::size_t>(i)].thread >= 0;
    if (waiting != threads) {
      fail(ErrorKind::internal, "emulator: {}: {} of {} threads wait at a gpu_sync()", name, waiting, threads);
    }
    for (int i = 0; i < used; ++i) resume(i);
  }
}

int linear_thread() { return worker.rank * worker.block_threads + current.thread[1] * current.block_size[0] + current.thread[0]; }

}  // namespace

void* dynamic_shared() { return worker.dynamic_shared[static_cast<std::size_t>(worker.rank)].data(); }

void* in_block(const void* shared, int rank) {
  const auto offset = static_cast<const char*>(shared) - worker.dynamic_shared[static_cast<std::size_t>(worker.rank)].data();
  return worker.dynamic_shared[static_cast<std::size_t>(rank)].data() + offset;
}

void barrier() {
  Fiber& fiber = worker.fibers[static_cast<std::size_t>(worker.running)];
  fiber.waited = true;
  leave(fiber, false);
}

float exchange(float value, int mask) {
  const int me = linear_thread();
  worker.slots[static_cast<std::size_t>(me)] = value;
  barrier();
  const float other = worker.slots[static_cast<std::size_t>(me ^ mask)];
  barrier();  // nobody overwrites a slot that is still to be read
  return other;
}

namespace {

// Hands everyone's fragments round; value(lane, register) reads a lane's of this warp: 0..3 of A, 4 and 5 of B.
template <class Product>
void with_fragments(const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], const Product& product) {
  const int me = linear_thread(), first = me & ~31;
  std::uint32_t* mine = worker.fragments.data() + static_cast<std::size_t>(me) * 6;
  for (int i = 0; i < 4; ++i) mine[i] = a[i];
  for (int i = 0; i < 2; ++i) mine[4 + i] = b[i];
  barrier();
  product([&](int lane, int i) { return worker.fragments[static_cast<std::size_t>(first + lane) * 6 + static_cast<std::size_t>(i)]; });
  barrier();
}

}  // namespace

void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  // PTX ISA, "Matrix fragments for mma.m16n8k16": g = lane / 4, t = lane % 4; a0 = row g, k 2t..2t+1; a1 = row g + 8; a2, a3 =
  // the same at k + 8; b0 = column g, k 2t..2t+1; b1 at k + 8; c0, c1 = row g, columns 2t, 2t + 1; c2, c3 = row g + 8.
  const int lane = linear_thread() & 31, g = lane / 4, t = lane % 4;
  with_fragments(a, b, [&](const auto& fragment) {
    const auto value = [](std::uint32_t pair, int which) { return bf16_to_f32(static_cast<std::uint16_t>(pair >> (16 * which))); };
    for (int i = 0; i < 4; ++i) {
      const int row = i / 2, column = 2 * t + i % 2;
      for (int k = 0; k < 16; ++k) {
        c[i] += value(fragment(4 * g + (k % 8) / 2, row + (k / 8) * 2), k % 2) * value(fragment(4 * column + (k % 8) / 2, 4 + k / 8), k % 2);
      }
    }
  });
}

void mma_tf32(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  // PTX ISA, "Matrix fragments for mma.m16n8k8", .tf32: a0 = row g, k t; a1 = row g + 8; a2, a3 = the same at k + 4; b0 = column g,
  // k t; b1 at k + 4; c as above.
  const int lane = linear_thread() & 31, g = lane / 4, t = lane % 4;
  with_fragments(a, b, [&](const auto& fragment) {
    for (int i = 0; i < 4; ++i) {
      const int row = i / 2, column = 2 * t + i % 2;
      for (int k = 0; k < 8; ++k) {
        const auto left = fragment(4 * g + k % 4, row + k / 4 * 2), right = fragment(4 * column + k % 4, 4 + k / 4);
        c[i] += std::bit_cast<float>(left) * std::bit_cast<float>(right);
      }
    }
  });
}

std::map<std::string, std::map<int, Kernel>>& kernels() {
  static std::map<std::string, std::map<int, Kernel>> all;
  return all;
}

void run_kernel(const std::string& name, const Kernel& kernel, const unsigned grid[3], const unsigned block[3], unsigned cluster,
            std::size_t shared_bytes, void** arguments, Order order) {
  const std::function<void()> body = [&] { kernel.call(arguments); };
  HEIRLOOM_CHECK(grid[0] % cluster == 0);
  const int threads = static_cast<int>(block[0] * block[1] * cluster);
  worker.order = order;
  worker.block_threads = static_cast<int>(block[0] * block[1]);
  worker.slots.assign(static_cast<std::size_t>(threads), 0.0f);
  worker.fragments.assign(static_cast<std::size_t>(threads) * 6, 0);
  worker.dynamic_shared.clear();
  for (unsigned i = 0; i < cluster; ++i) worker.dynamic_shared.emplace_back(shared_bytes);  // exactly this many bytes, for AddressSanitizer
  for (unsigned z = 0; z < grid[2]; ++z) {
    for (unsigned y = 0; y < grid[1]; ++y) {
      for (unsigned x = 0; x < grid[0]; x += cluster) {
        for (std::vector<char>& shared : worker.dynamic_shared) std::ranges::fill(shared, '\xff');
        worker.first_block = static_cast<int>(x);
        worker.rank = 0;
        current = {{0, 0},
                   {static_cast<int>(x), static_cast<int>(y), static_cast<int>(z)},
                   {static_cast<int>(block[0]), static_cast<int>(block[1])},
                   {static_cast<int>(grid[0]), static_cast<int>(grid[1]), static_cast<int>(grid[2])}};
        run_block(name, threads, body);
      }
    }
  }
}

}  // namespace heirloom::emulator
