#include "cli/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

namespace heirloom::cli {
namespace {

std::atomic<bool> g_interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_interrupt(int) {
  if (g_interrupted.exchange(true)) ::_exit(130);  // nobody took the first one: the program is busy elsewhere
}

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
}

bool take_interrupt() { return g_interrupted.exchange(false); }

}  // namespace heirloom::cli
