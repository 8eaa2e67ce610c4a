#include "engine/memory_plan.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "base/check.h"
#include "ops/backend.h"

namespace heirloom::engine {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
// float32 keys and values as long as they are small beside the rest; half precision (11 bits, relative error 2^-12) beyond.
constexpr std::uint64_t kFloatKvBytes = 2 * kGiB;
constexpr int kPageTokens = ops::StateShape::kPageTokens;

std::uint64_t request_bytes(const model::Model& model, DType kv_type, int context) {
  const ops::StateShape shape = model.state_shape(kv_type);
  const auto pages = static_cast<std::uint64_t>((context + kPageTokens - 1) / kPageTokens);
  return pages * shape.page_bytes() + (shape.conv_floats() + shape.recurrent_floats()) * sizeof(float);
}

std::uint64_t number_in(const char* path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? value : 0;  // "max" and a missing file both mean no limit
}

DType parse_kv_type(const std::string& name) {
  const auto type = parse_dtype(name);
  if (!type || (*type != DType::f32 && *type != DType::f16 && *type != DType::bf16)) {
    fail(ErrorKind::usage, "--kv-type {}: expected f32, f16 or bf16", name);
  }
  return *type;
}

}  // namespace

std::uint64_t available_host_bytes() {
  std::uint64_t available = 0;
  std::ifstream file("/proc/meminfo");
  for (std::string key; file >> key;) {
    if (key == "MemAvailable:") {
      file >> available;
      available *= 1024;
      break;
    }
    file.ignore(256, '\n');
  }
  const std::uint64_t limit = number_in("/sys/fs/cgroup/memory.max");
  const std::uint64_t used = number_in("/sys/fs/cgroup/memory.current");
  if (limit > 0) available = std::min(available, limit > used ? limit - used : 0);
  return available;
}

MemoryPlan make_memory_plan(const model::Model& model, const EngineOptions& options, std::uint64_t available_bytes) {
  if (options.parallel < 1 || options.parallel > 4096) {
    fail(ErrorKind::usage, "--parallel {}: expected 1 to 4096", options.parallel);
  }
  if (options.context_tokens < 0) fail(ErrorKind::usage, "--ctx {}: expected a positive number", options.context_tokens);
  const int model_context = std::max(model.config().text.context_length, 1);
  if (options.context_tokens > model_context) {
    fail(ErrorKind::usage, "--ctx {}: the model was made for {} tokens at most", options.context_tokens, model_context);
  }
  MemoryPlan plan;
  plan.available_bytes = available_bytes;
  plan.context_tokens = options.context_tokens > 0 ? options.context_tokens : model_context;
  const auto parallel = static_cast<std::uint64_t>(options.parallel);
  const auto kv_type_for = [&](int context) {
    if (!options.kv_type.empty()) return parse_kv_type(options.kv_type);
    return parallel * request_bytes(model, DType::f32, context) <= kFloatKvBytes ? DType::f32 : DType::f16;
  };
  // A tenth stays for activations and everything else.
  const std::uint64_t usable = available_bytes / 10 * 9;
  plan.cache_bytes = std::min(options.cache_ram_bytes, usable / 4);
  const std::uint64_t for_requests = usable - plan.cache_bytes;
  plan.kv_type = kv_type_for(plan.context_tokens);
  plan.bytes_per_request = request_bytes(model, plan.kv_type, plan.context_tokens);
  if (plan.bytes_per_request * parallel <= for_requests) return plan;
  if (options.context_tokens > 0) {
    fail(ErrorKind::does_not_fit,
         "{} requests of {} tokens need {} MiB beside the weights, {} MiB are there; lower --ctx, --parallel or --cache-ram",
         options.parallel, plan.context_tokens, plan.bytes_per_request * parallel >> 20, for_requests >> 20);
  }
  while (plan.context_tokens > kPageTokens && plan.bytes_per_request * parallel > for_requests) {
    plan.context_tokens = std::max(plan.context_tokens / 2 / kPageTokens * kPageTokens, kPageTokens);
    plan.kv_type = kv_type_for(plan.context_tokens);
    plan.bytes_per_request = request_bytes(model, plan.kv_type, plan.context_tokens);
  }
  if (plan.bytes_per_request * parallel > for_requests) {
    fail(ErrorKind::does_not_fit, "a request needs {} MiB beside the weights, {} MiB are there; lower --parallel or --cache-ram",
         plan.bytes_per_request >> 20, for_requests / parallel >> 20);
  }
  return plan;
}

}  // namespace heirloom::engine
