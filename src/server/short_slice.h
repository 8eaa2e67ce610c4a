// Scheduling of threads that run for microseconds at a time beside threads that compute without pause.
#pragma once

namespace heirloom::server {

/// Asks the OS to run the calling thread soon after it wakes, at no greater share of the processor: Linux takes a fair thread's
/// slice as the measure of how long it may be kept waiting (sched(7), since 6.12), so a shorter one goes ahead of a thread in the
/// middle of its 3 ms. Does nothing where the kernel does not know it.
void ask_short_slice() noexcept;

}  // namespace heirloom::server
