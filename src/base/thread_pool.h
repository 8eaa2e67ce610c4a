// A persistent pool of threads for data-parallel loops. It owns how work is handed out, how threads wait for work, and how
// they sleep. It leaves to the caller what a piece of work is; nothing here knows about tensors.
//
// Work is cut into pieces. Each thread has a run of neighbouring pieces of its own, the same ones whenever a loop of that size comes
// again, so that what a piece reads and writes stays in its core's cache; a thread that is through with its own takes those
// of others. A loop ends when its pieces are done, not when every thread has woken: a worker that the OS has taken off its core
// before it claimed a piece costs nothing, because the others do its share. That is what keeps a busy neighbour from stalling
// each of the hundreds of short loops of a decoded token.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/check.h"

namespace heirloom {

class ThreadPool {
 public:
  /// `threads` includes the calling thread; 0 = default_thread_count().
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  /// Calls fn(part, num_threads) once for each part of [0, num_threads), in parallel, and returns when all are done. Two
  /// parts may run on one thread, one after the other, so parts must not wait for each other; scratch indexed by
  /// `part` is safe. Not re-entrant. The first exception is rethrown here once every part has ended.
  template <typename Fn>
  void run(const Fn& fn) {
    const int parts = num_threads_;
    pieces(static_cast<std::uint32_t>(parts), [&](std::uint32_t part, int) { fn(static_cast<int>(part), parts); });
  }

  /// Calls fn(begin, end) or fn(begin, end, thread) on disjoint ranges that cover [0, n); every `begin` is a multiple of
  /// `grain`. `thread` in [0, num_threads) is unique among calls that run at the same time (for scratch). Runs on the
  /// calling thread alone when there is no more than one grain.
  template <typename Fn>
  void parallel_for(std::int64_t n, std::int64_t grain, const Fn& fn) {
    if (n <= 0) return;
    const std::int64_t units = (n + grain - 1) / grain;
    if (units == 1 || num_threads_ == 1) {
      call(fn, 0, n, 0);
      return;
    }
    const std::int64_t most = static_cast<std::int64_t>(num_threads_) * kPiecesPerThread;
    const std::int64_t count = units < most ? units : most;
    pieces(static_cast<std::uint32_t>(count), [&](std::uint32_t piece, int thread) {
      const std::int64_t begin = units * piece / count * grain;
      const std::int64_t end = units * (piece + 1) / count * grain;
      call(fn, begin, end < n ? end : n, thread);
    });
  }

 private:
  // Enough that the last piece of a loop is a small part of it, few enough that claiming (about 10 ns) does not show.
  static constexpr int kPiecesPerThread = 8;
  static constexpr int kCountBits = 16;
  static constexpr std::uint64_t kCountMask = (1u << kCountBits) - 1;

  using Piece = void (*)(const void* fn, std::uint32_t piece, int thread);

  template <typename Fn>
  static void call(const Fn& fn, std::int64_t begin, std::int64_t end, int thread) {
    if constexpr (std::is_invocable_v<const Fn&, std::int64_t, std::int64_t, int>) {
      fn(begin, end, thread);
    } else {
      fn(begin, end);
    }
  }

  template <typename Fn>
  void pieces(std::uint32_t count, const Fn& fn) {
    if (num_threads_ == 1 || count == 1) {
      for (std::uint32_t piece = 0; piece < count; ++piece) fn(piece, 0);
      return;
    }
    fork_join(count, [](const void* context, std::uint32_t piece, int thread) {
      (*static_cast<const Fn*>(context))(piece, thread);
    }, &fn);
  }

  void fork_join(std::uint32_t count, Piece piece, const void* context);
  std::uint32_t work(int thread, std::uint64_t loop);
  void worker_main(int thread);

  // The next piece to claim of a thread's run, below the number of the loop that this was written in. A claim compares both,
  // so a thread that comes late takes nothing of a later loop for a piece of its own.
  struct alignas(64) Run {
    std::atomic<std::uint64_t> next{0};
  };

  int num_threads_;
  std::vector<Run> runs_;  // of each thread
  std::vector<std::thread> workers_;

  // The loop in progress: its number (from 1 on, above kCountBits; 48 bits last for centuries) and how many pieces it has.
  // Whoever claims a piece of it may read piece_ and context_, because the loop cannot end before that piece is done.
  alignas(64) std::atomic<std::uint64_t> loop_{0};
  Piece piece_ = nullptr;
  const void* context_ = nullptr;
  alignas(64) std::atomic<std::uint32_t> done_{0};  // pieces, by the workers
  std::atomic<bool> caller_sleeps_{false};
  std::exception_ptr error_;
  std::atomic<bool> failed_{false};

  alignas(64) std::atomic<std::uint32_t> wake_{0};  // futex word of sleeping workers
  std::atomic<std::uint32_t> sleepers_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace heirloom
