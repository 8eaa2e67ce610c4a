// The rule for first lines that change from request to request: some clients put a billing or session header at the very
// start of the system text (anthropics/claude-code#68900, waybarrios/vllm-mlx#277), so that no prompt ever shares a prefix
// with another. Such lines mean nothing to a model; they are taken out before the prompt is made.
#pragma once

#include <string>
#include <string_view>

#include "heirloom/engine.h"

namespace heirloom::engine {

/// `text` without the lines at its beginning that start with "x-anthropic-billing-header:" (any case).
std::string_view without_volatile_lines(std::string_view text);

/// Applies it to the first message if its role is system or developer: to its text, or to its text parts up to the first
/// one that keeps anything; parts left empty disappear.
void strip_volatile_lines(Json& messages);

}  // namespace heirloom::engine
