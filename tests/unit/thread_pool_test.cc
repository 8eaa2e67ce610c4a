// The pool's promises: every part and range exactly once, exceptions delivered, idle threads asleep.
#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace heirloom {
namespace {

double process_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

TEST(thread_pool, run_calls_every_part_once) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.num_threads(), threads);
    for (int repeat = 0; repeat < 300; ++repeat) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(threads));
      pool.run([&](int part, int parts) {
        EXPECT_EQ(parts, threads);
        calls[static_cast<std::size_t>(part)].fetch_add(1);
      });
      for (const auto& count : calls) ASSERT_EQ(count.load(), 1);
    }
  }
}

TEST(thread_pool, parallel_for_covers_the_range_once_in_whole_grains) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    for (const std::int64_t n : {0, 1, 7, 8, 9, 64, 1000}) {
      for (const std::int64_t grain : {1, 3, 8, 5000}) {
        std::vector<std::atomic<int>> hits(static_cast<std::size_t>(n));
        pool.parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end, int thread) {
          EXPECT_EQ(begin % grain, 0);
          EXPECT_GE(thread, 0);
          EXPECT_LT(thread, threads);
          for (std::int64_t i = begin; i < end; ++i) hits[static_cast<std::size_t>(i)].fetch_add(1);
        });
        for (const auto& hit : hits) ASSERT_EQ(hit.load(), 1);
      }
    }
  }
}

TEST(thread_pool, thread_numbers_are_unique_among_running_pieces) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<int> clashes{0};
  for (int repeat = 0; repeat < 200; ++repeat) {
    pool.parallel_for(64, 1, [&](std::int64_t, std::int64_t, int thread) {
      if (inside[static_cast<std::size_t>(thread)].fetch_add(1) != 0) clashes.fetch_add(1);
      inside[static_cast<std::size_t>(thread)].fetch_sub(1);
    });
  }
  EXPECT_EQ(clashes.load(), 0);
}

TEST(thread_pool, results_of_one_loop_are_visible_to_the_next) {
  ThreadPool pool(3);
  std::vector<std::int64_t> values(97, 0);
  for (int repeat = 0; repeat < 500; ++repeat) {
    // Each element moves to its neighbour's place, so that a stale read would show in the final sum.
    const std::vector<std::int64_t> before = values;
    pool.parallel_for(97, 4, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        values[static_cast<std::size_t>(i)] = before[static_cast<std::size_t>((i + 1) % 97)] + 1;
      }
    });
  }
  for (const std::int64_t value : values) EXPECT_EQ(value, 500);
}

TEST(thread_pool, threads_that_come_late_take_no_piece_of_a_later_loop) {
  // More threads than cores and loops of different sizes in quick succession: many threads wake in another loop than the one that
  // woke them, or are taken off their core between looking at a loop and claiming.
  ThreadPool pool(6);
  for (int loop = 0; loop < 20000; ++loop) {
    const int count = 2 + loop * 7 % 47;
    std::atomic<int> hits[48] = {};
    std::atomic<int> wrong{0};
    pool.parallel_for(count, 1, [&, loop](std::int64_t begin, std::int64_t end) {
      if (end > count || loop * 7 % 47 + 2 != count) wrong.fetch_add(1);
      for (std::int64_t i = begin; i < end; ++i) hits[i].fetch_add(1, std::memory_order_relaxed);
    });
    ASSERT_EQ(wrong.load(), 0);
    for (int i = 0; i < 48; ++i) ASSERT_EQ(hits[i].load(), i < count ? 1 : 0);
  }
}

TEST(thread_pool, rethrows_the_first_exception_and_stays_usable) {
  ThreadPool pool(3);
  for (int repeat = 0; repeat < 20; ++repeat) {
    EXPECT_THROW(pool.parallel_for(100, 1,
                                   [](std::int64_t begin, std::int64_t) {
                                     if (begin > 50) throw std::runtime_error("piece failed");
                                   }),
                 std::runtime_error);
    std::atomic<int> sum{0};
    pool.run([&](int, int) { sum.fetch_add(1); });
    EXPECT_EQ(sum.load(), 3);
  }
}

TEST(thread_pool, idle_threads_sleep_and_wake_again) {
  ThreadPool pool(4);
  std::atomic<int> sum{0};
  pool.run([&](int, int) { sum.fetch_add(1); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // long past spinning and yielding
  const double before = process_cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  // Three threads that spun would have used up to 1.2 s; asleep they use none. The limit leaves room for noise only.
  EXPECT_LT(process_cpu_seconds() - before, 0.05);
  pool.run([&](int, int) { sum.fetch_add(1); });
  EXPECT_EQ(sum.load(), 8);
}

TEST(thread_pool, busy_neighbours_do_not_change_results) {
  ThreadPool pool(2);
  std::atomic<bool> stop{false};
  std::vector<std::thread> neighbours;
  for (int i = 0; i < 2; ++i) {
    neighbours.emplace_back([&] {
      while (!stop.load(std::memory_order_relaxed)) {
      }
    });
  }
  // Long enough for threads to lose their cores inside pieces many times (a turn of the scheduler is about 3 ms).
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(400);
  std::int64_t loops = 0, wrong = 0;
  while (std::chrono::steady_clock::now() < until) {
    std::vector<std::atomic<int>> hits(16);
    pool.parallel_for(16, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        for (int spin = 0; spin < 20000; ++spin) std::atomic_signal_fence(std::memory_order_seq_cst);
        hits[static_cast<std::size_t>(i)].fetch_add(1);
      }
    });
    for (const auto& hit : hits) wrong += hit.load() != 1;
    ++loops;
  }
  stop.store(true);
  for (std::thread& neighbour : neighbours) neighbour.join();
  EXPECT_GT(loops, 0);
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace heirloom
