// Time and bytes by operation, for --timings. A backend holds a pointer to one (null: off, then a scope is one branch) and
// opens a scope in each op. Not thread-safe: ops are issued by one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

namespace heirloom {

class Profiler {
 public:
  struct Entry {
    std::string_view name;
    std::uint64_t calls = 0;
    std::uint64_t nanoseconds = 0;
    std::uint64_t bytes = 0;  // weights, state and KV that the op must read or write; activations are not counted
  };

  /// Adds its own lifetime to the entry `name`, a literal.
  class Scope {
   public:
    Scope(Profiler* profiler, std::string_view name, std::uint64_t bytes = 0) : profiler_(profiler) {
      if (profiler_ == nullptr) return;
      name_ = name;
      bytes_ = bytes;
      start_ = std::chrono::steady_clock::now();
    }
    ~Scope() {
      if (profiler_ != nullptr) profiler_->add(name_, std::chrono::steady_clock::now() - start_, bytes_);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Profiler* profiler_;
    std::string_view name_;
    std::uint64_t bytes_ = 0;
    std::chrono::steady_clock::time_point start_;
  };

  void add(std::string_view name, std::chrono::nanoseconds time, std::uint64_t bytes) {
    Entry& entry = find(name);
    ++entry.calls;
    entry.nanoseconds += static_cast<std::uint64_t>(time.count());
    entry.bytes += bytes;
  }
  /// In the order of first use.
  const std::vector<Entry>& entries() const { return entries_; }
  void reset() { entries_.clear(); }

 private:
  Entry& find(std::string_view name) {
    for (Entry& entry : entries_) {
      if (entry.name == name) return entry;
    }
    return entries_.emplace_back(Entry{name});
  }
  std::vector<Entry> entries_;  // a few dozen at most: a linear search is the fastest
};

}  // namespace heirloom
