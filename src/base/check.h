// CHECK terminates on our own bugs; it is never used for files, requests or devices. DCHECK exists in debug builds only.
// `fail` throws an Error with a formatted message.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "heirloom/error.h"

namespace heirloom {

template <typename... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace heirloom

#define HEIRLOOM_CHECK(condition)                                                                    \
  do {                                                                                               \
    if (!(condition)) {                                                                              \
      std::fprintf(stderr, "%s:%d: internal check failed: %s\n", __FILE__, __LINE__, #condition);    \
      std::abort();                                                                                  \
    }                                                                                                \
  } while (false)

#ifdef NDEBUG
#define HEIRLOOM_DCHECK(condition) \
  do {                             \
  } while (false)
#else
#define HEIRLOOM_DCHECK(condition) HEIRLOOM_CHECK(condition)
#endif
