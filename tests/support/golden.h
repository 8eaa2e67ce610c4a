// Where tests find reference data: the kit's subset in tests/golden, or the whole kit beside the checkout when it is there.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace heirloom::test {

/// Path of `relative` (as in the golden kit, e.g. "quant/quant.safetensors") in tests/golden or else in ../shared/golden.
/// Empty if neither has it.
std::filesystem::path golden(const std::string& relative);

/// A folder beside the checkout that is not shipped ("models/demo-vl", "eval/demo-vl"); empty if absent.
std::filesystem::path shared(const std::string& relative);

}  // namespace heirloom::test

/// Skips the test, naming what is missing, unless the reference file exists.
#define HEIRLOOM_REQUIRE(path)                                                         \
  do {                                                                                 \
    if ((path).empty()) GTEST_SKIP() << "not in this checkout: " #path;                \
  } while (false)
