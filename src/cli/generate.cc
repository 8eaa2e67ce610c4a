#include "cli/generate.h"

#include <chrono>
#include <cstdio>
#include <thread>

#include "cli/interrupt.h"

namespace heirloom::cli {

RequestResult generate(Engine& engine, Request request, bool stream) {
  const auto on_token = [stream](const TokenEvent& event) {
    if (!stream || event.text.empty()) return;
    std::fwrite(event.text.data(), 1, event.text.size(), stdout);
    std::fflush(stdout);
  };
  const std::shared_ptr<RequestHandle> handle = engine.submit(std::move(request), on_token, {});
  while (!handle->finished()) {
    if (take_interrupt()) handle->cancel();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const RequestResult& result = handle->wait();
  if (result.error) throw *result.error;
  return result;
}

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::cancelled: return "cancelled";
    case FinishReason::error: return "error";
  }
  return "";
}

}  // namespace heirloom::cli
