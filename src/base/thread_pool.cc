#include "base/thread_pool.h"

#include <chrono>
#include <utility>

#include "base/cpu_topology.h"

namespace heirloom {
namespace {

using Clock = std::chrono::steady_clock;

// How long a thread without work spins, then yields, before it sleeps. A token's loops follow each other within a few
// microseconds; sampling and printing between tokens take tens. Past that, idle must cost nothing.
constexpr auto kSpin = std::chrono::microseconds(30);
constexpr auto kYield = std::chrono::microseconds(100);

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Spins, then yields, until ready() or the time is over; returns ready().
template <typename Ready>
bool wait_awake(const Ready& ready) {
  for (int i = 0; i < 64; ++i) {
    if (ready()) return true;
    pause();
  }
  const auto start = Clock::now();
  for (auto waited = Clock::duration::zero(); waited < kSpin + kYield; waited = Clock::now() - start) {
    if (waited < kSpin) {
      for (int i = 0; i < 16; ++i) {
        if (ready()) return true;
        pause();
      }
    } else {
      if (ready()) return true;
      std::this_thread::yield();
    }
  }
  return ready();
}

}  // namespace

ThreadPool::ThreadPool(int threads) : num_threads_(threads > 0 ? threads : default_thread_count()) {
  HEIRLOOM_CHECK(static_cast<std::uint32_t>(num_threads_) * kPiecesPerThread <= kMaxPieces);
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

bool ThreadPool::has_work() const {
  const std::uint64_t tickets = tickets_.load(std::memory_order_seq_cst);
  return static_cast<std::uint32_t>(tickets) < (tickets >> 32);
}

void ThreadPool::work(int thread) {
  // The look before the claim keeps the counter from running away: each thread passes the end at most once a loop.
  while (has_work()) {
    const std::uint64_t ticket = tickets_.fetch_add(1, std::memory_order_acq_rel);
    const auto piece = static_cast<std::uint32_t>(ticket);
    if (piece >= (ticket >> 32)) break;
    try {
      piece_(context_, piece, thread);
    } catch (...) {
      if (!failed_.exchange(true)) error_ = std::current_exception();
    }
    const bool last = done_.fetch_add(1, std::memory_order_seq_cst) + 1 == (ticket >> 32);
    if (last && caller_sleeps_.load(std::memory_order_seq_cst)) done_.notify_one();
  }
}

void ThreadPool::fork_join(std::uint32_t count, Piece piece, const void* context) {
  HEIRLOOM_DCHECK(!has_work());
  piece_ = piece;
  context_ = context;
  done_.store(0, std::memory_order_relaxed);
  tickets_.store(static_cast<std::uint64_t>(count) << 32, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) {
    wake_.fetch_add(1);
    wake_.notify_all();
  }
  work(0);

  const auto all_done = [&] { return done_.load(std::memory_order_seq_cst) == count; };
  if (!wait_awake(all_done)) {
    // A worker lost its core inside a piece. Sleeping gives this thread's core away, so that the worker can move here.
    // (Moving it by hand, with sched_setaffinity once its CPU clock stood still, was tried and gained nothing: with one busy
    // neighbour on one of two cores both ways run at the speed of the other core, 36 to 43 ms a token of 200 loops where
    // one thread takes 40 and two alone take 22.)
    caller_sleeps_.store(true, std::memory_order_seq_cst);
    for (std::uint32_t seen = done_.load(); seen != count; seen = done_.load()) done_.wait(seen);
    caller_sleeps_.store(false, std::memory_order_relaxed);
  }
  if (failed_.load(std::memory_order_relaxed)) {
    failed_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

bool ThreadPool::wait_for_work() {
  if (wait_awake([this] { return has_work() || stop_.load(std::memory_order_relaxed); })) return true;
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  const std::uint32_t seen = wake_.load(std::memory_order_seq_cst);
  if (!has_work() && !stop_.load()) wake_.wait(seen);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  return has_work();
}

void ThreadPool::worker_main(int thread) {
  while (!stop_.load(std::memory_order_relaxed)) {
    if (wait_for_work()) work(thread);
  }
}

}  // namespace heirloom
