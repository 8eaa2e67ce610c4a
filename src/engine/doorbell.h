// Wakes one sleeping thread: the scheduler sleeps on it when there is nothing to do, submitters and the disk thread ring.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace heirloom::engine {

class Doorbell {
 public:
  void ring() {
    {
      const std::scoped_lock lock(mutex_);
      rung_ = true;
    }
    wake_.notify_one();
  }
  /// Until rung since the last wait (true), or the time is over.
  bool wait_for(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, time, [&] { return rung_; });
    return std::exchange(rung_, false);
  }
  void wait() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return rung_; });
    rung_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool rung_ = false;
};

}  // namespace heirloom::engine
