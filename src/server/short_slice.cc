#include "server/short_slice.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace heirloom::server {
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

constexpr std::uint64_t kShortestSlice = 100'000;  // what the kernel allows

}  // namespace

void ask_short_slice() noexcept {
  SchedAttr attr{};
  if (syscall(SYS_sched_getattr, 0, &attr, sizeof attr, 0) != 0 || attr.policy != SCHED_OTHER) return;
  attr.size = sizeof attr;
  attr.flags = 0;
  attr.runtime = kShortestSlice;
  syscall(SYS_sched_setattr, 0, &attr, 0);  // a refusal leaves the thread as it was
}

}  // namespace heirloom::server
