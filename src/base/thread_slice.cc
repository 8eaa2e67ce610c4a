#include "base/thread_slice.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace heirloom {
namespace {

// struct sched_attr of the kernel's interface, version 0 (linux/sched/types.h); glibc 2.36 has no wrapper.
struct SchedAttr {
  std::uint32_t size;
  std::uint32_t policy;
  std::uint64_t flags;
  std::int32_t nice;
  std::uint32_t priority;
  std::uint64_t runtime, deadline, period;  // ns; runtime is a fair thread's slice
};
static_assert(sizeof(SchedAttr) == 48);

}  // namespace

void ask_slice(std::chrono::microseconds slice) noexcept {
  SchedAttr attr{};
  if (syscall(SYS_sched_getattr, 0, &attr, sizeof attr, 0) != 0 || attr.policy != SCHED_OTHER) return;
  attr.size = sizeof attr;
  attr.flags = 0;
  attr.runtime = static_cast<std::uint64_t>(slice.count()) * 1000;
  syscall(SYS_sched_setattr, 0, &attr, 0);  // a refusal leaves the thread as it was
}

}  // namespace heirloom
