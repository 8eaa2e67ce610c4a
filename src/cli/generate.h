// Runs one request to its end from a command: streams text to stdout, watches for Ctrl-C.
#pragma once

#include "heirloom/engine.h"

namespace heirloom::cli {

/// Submits and waits. `stream`: text goes to stdout as it comes. Ctrl-C cancels the request (finish_reason cancelled).
/// Throws the request's Error if it failed.
RequestResult generate(Engine& engine, Request request, bool stream);

const char* finish_reason_name(FinishReason reason);

}  // namespace heirloom::cli
