// How long the OS may keep a thread waiting for a processor, or let it run at a stretch, at no other share of the time.
#pragma once

#include <chrono>

namespace heirloom {

/// Asks for a slice of the calling thread. Linux (since 6.12, sched(7)) runs the thread with the earliest deadline, a slice away: one
/// that wakes takes the processor at once from one with a longer slice. Threads that compute without pause take a long one, so
/// that everybody else's wake-ups come first; those that run for microseconds and must be prompt a short one. Limits: 0.1 to
/// 100 ms. Does nothing where the kernel does not know it, or under a real-time or batch policy.
void ask_slice(std::chrono::microseconds slice) noexcept;

constexpr std::chrono::microseconds kComputeSlice{100'000};
constexpr std::chrono::microseconds kPromptSlice{100};

}  // namespace heirloom
