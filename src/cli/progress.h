// A progress bar on stderr, shown only when stderr is a terminal and the work takes longer than two seconds.
#pragma once

#include <functional>
#include <string_view>

namespace heirloom::cli {

/// A callback for EngineOptions::progress and the tools: fraction 0..1 and what is being done. The bar is removed at 1.
std::function<void(double fraction, std::string_view what)> progress_bar();

}  // namespace heirloom::cli
