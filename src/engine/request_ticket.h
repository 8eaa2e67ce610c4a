// The caller's side of a running request: result, cancellation, waiting.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "heirloom/engine.h"

namespace heirloom::engine {

class RequestTicket final : public RequestHandle {
 public:
  void cancel() noexcept override { cancelled_.store(true, std::memory_order_relaxed); }
  const RequestResult& wait() override {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return finished_.load(std::memory_order_relaxed); });
    return result_;
  }
  bool finished() const noexcept override { return finished_.load(std::memory_order_acquire); }

  // Engine's side.
  bool cancel_requested() const { return cancelled_.load(std::memory_order_relaxed); }
  void finish(RequestResult result) {
    {
      const std::scoped_lock lock(mutex_);
      result_ = std::move(result);
      finished_.store(true, std::memory_order_release);
    }
    done_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  std::atomic<bool> cancelled_{false}, finished_{false};
  RequestResult result_;
};

}  // namespace heirloom::engine
