// Where tests find the tools that scripts/make_test_venv.sh installs.
#pragma once

#include <filesystem>

namespace heirloom::test {

/// A file or folder of the test environment ("test-venv/bin/python", "qwen3_5-tokenizer.json"); empty if it is not installed.
/// The environment lies in $HEIRLOOM_DEPS_DIR, else $XDG_CACHE_HOME/heirloom, else $HOME/.cache/heirloom.
std::filesystem::path test_tool(const std::filesystem::path& relative);

}  // namespace heirloom::test
