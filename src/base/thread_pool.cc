#include "base/thread_pool.h"

#include <chrono>
#include <utility>

#include "base/cpu_topology.h"
#include "base/thread_slice.h"

namespace heirloom {
namespace {

using Clock = std::chrono::steady_clock;

// How long a thread without work spins before it sleeps. A token's loops follow each other within a few microseconds; sampling and
// handing tokens out take tens. Past that, idle must cost nothing. (It does not yield meanwhile: a yield gives up the rest of the
// slice, on Linux 6.18 also the claim to the next one. Beside one busy process of a fortieth of the weight, eight streams of a small
// model ran at 9,800 tokens/s with yields from 30 us on and at 11,500 without.)
constexpr auto kSpin = std::chrono::microseconds(100);

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Spins until ready() or the time is over; returns ready().
template <typename Ready>
bool wait_awake(const Ready& ready) {
  for (int i = 0; i < 64; ++i) {
    if (ready()) return true;
    pause();
  }
  for (const auto end = Clock::now() + kSpin; Clock::now() < end;) {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return true;
      pause();
    }
  }
  return ready();
}

}  // namespace

ThreadPool::ThreadPool(int threads)
    : num_threads_(threads > 0 ? threads : default_thread_count()), runs_(static_cast<std::size_t>(num_threads_)) {
  HEIRLOOM_CHECK(static_cast<std::uint64_t>(num_threads_) * kPiecesPerThread <= kCountMask);
  workers_.reserve(static_cast<std::size_t>(num_threads_ - 1));
  for (int thread = 1; thread < num_threads_; ++thread) {
    workers_.emplace_back([this, thread] { worker_main(thread); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

/// Runs pieces of the loop until all are claimed, those of this thread's run first; returns how many. `loop`: as loop_ had it.
std::uint32_t ThreadPool::work(int thread, std::uint64_t loop) {
  const auto threads = static_cast<std::uint64_t>(num_threads_);
  const std::uint64_t count = loop & kCountMask, number = loop >> kCountBits;
  std::uint32_t ran = 0;
  for (std::uint64_t i = 0; i < threads; ++i) {
    const std::uint64_t owner = (static_cast<std::uint64_t>(thread) + i) % threads;
    const std::uint64_t begin = count * owner / threads, end = count * (owner + 1) / threads;
    std::atomic<std::uint64_t>& next = runs_[owner].next;
    std::uint64_t seen = next.load(std::memory_order_relaxed);
    for (;;) {
      if (seen >> kCountBits > number) return ran;  // the loop ended long ago
      const std::uint64_t piece = seen >> kCountBits == number ? seen & kCountMask : begin;
      if (piece >= end) break;
      const std::uint64_t claimed = number << kCountBits | (piece + 1);
      if (!next.compare_exchange_weak(seen, claimed, std::memory_order_acquire, std::memory_order_relaxed)) continue;
      try {
        piece_(context_, static_cast<std::uint32_t>(piece), thread);
      } catch (...) {
        if (!failed_.exchange(true)) error_ = std::current_exception();
      }
      ++ran;
      seen = next.load(std::memory_order_relaxed);
    }
  }
  return ran;
}

void ThreadPool::fork_join(std::uint32_t count, Piece piece, const void* context) {
  piece_ = piece;
  context_ = context;
  done_.store(0, std::memory_order_relaxed);
  const std::uint64_t loop = ((loop_.load(std::memory_order_relaxed) >> kCountBits) + 1) << kCountBits | count;
  loop_.store(loop, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) {
    wake_.fetch_add(1);
    wake_.notify_all();
  }
  const std::uint32_t others = count - work(0, loop);

  const auto all_done = [&] { return done_.load(std::memory_order_seq_cst) == others; };
  if (!wait_awake(all_done)) {
    // A worker lost its core inside a piece. Sleeping gives this thread's core away, so that the worker can move here.
    // (Moving it by hand, with sched_setaffinity once its CPU clock stood still, was tried and gained nothing: with one busy
    // neighbour on one of two cores both ways run at the speed of the other core, 36 to 43 ms a token of 200 loops where
    // one thread takes 40 and two alone take 22.)
    caller_sleeps_.store(true, std::memory_order_seq_cst);
    for (std::uint32_t seen = done_.load(); seen != others; seen = done_.load()) done_.wait(seen);
    caller_sleeps_.store(false, std::memory_order_relaxed);
  }
  if (failed_.load(std::memory_order_relaxed)) {
    failed_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

void ThreadPool::worker_main(int thread) {
  ask_slice(kComputeSlice);
  std::uint64_t seen = 0;  // the last loop that this thread looked into
  const auto ready = [&] { return loop_.load(std::memory_order_seq_cst) != seen || stop_.load(std::memory_order_relaxed); };
  while (!stop_.load(std::memory_order_relaxed)) {
    if (!wait_awake(ready)) {
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      const std::uint32_t wakes = wake_.load(std::memory_order_seq_cst);
      if (!ready()) wake_.wait(wakes);
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }
    const std::uint64_t loop = loop_.load(std::memory_order_acquire);
    if (loop == seen) continue;
    seen = loop;
    const std::uint32_t ran = work(thread, loop);
    if (ran == 0) continue;
    done_.fetch_add(ran, std::memory_order_seq_cst);
    if (caller_sleeps_.load(std::memory_order_seq_cst)) done_.notify_one();
  }
}

}  // namespace heirloom
