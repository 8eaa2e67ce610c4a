#include "server/info_api.h"

#include <iterator>

namespace heirloom::server {
namespace {

std::string escape_label(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c != '\n') out += c;
  }
  return out;
}

}  // namespace

Json model_object(const Engine& engine, std::int64_t created) {
  return {{"id", engine.model_name()},
          {"object", "model"},
          {"created", created},
          {"owned_by", "heirloom"},
          {"context_length", engine.context_tokens()},
          {"accepts_images", engine.accepts_images()}};
}

Json models_list(const Engine& engine, std::int64_t created) {
  return {{"object", "list"}, {"data", Json::array({model_object(engine, created)})}};
}

std::string metrics_text(const Engine& engine, GenerationStats& stats, const HttpCounters& http,
                         const std::map<std::pair<std::string, int>, std::uint64_t>& requests) {
  const EngineMetrics m = engine.metrics();
  std::string out;
  const auto put = [&](std::string_view name, std::string_view type, std::string_view help, auto value) {
    out += fmt::format("# HELP heirloom_{0} {1}\n# TYPE heirloom_{0} {2}\nheirloom_{0} {3}\n", name, help, type, value);
  };
  put("requests_total", "counter", "Requests taken by the engine (choices count one by one).", m.requests_total);
  put("requests_cancelled_total", "counter", "Requests that were cancelled.", m.requests_cancelled);
  put("requests_failed_total", "counter", "Requests that ended with an error.", m.requests_failed);
  put("prompt_tokens_total", "counter", "Prompt tokens.", m.prompt_tokens_total);
  put("cached_tokens_total", "counter", "Prompt tokens taken from the prefix cache.", m.cached_tokens_total);
  put("generated_tokens_total", "counter", "Generated tokens.", m.generated_tokens_total);
  put("slots_busy", "gauge", "Slots that work on a request.", m.slots_busy);
  put("slots_total", "gauge", "Slots (--parallel).", m.slots_total);
  put("requests_queued", "gauge", "Requests waiting for a slot.", m.queued);
  put("cache_ram_bytes", "gauge", "Bytes of prefix snapshots in memory.", m.cache_ram_bytes);
  put("cache_disk_bytes", "gauge", "Bytes of prefix snapshots on disk.", m.cache_disk_bytes);
  put("kv_bytes", "gauge", "Bytes of KV pages in use.", m.kv_bytes);
  put("cache_hits_total", "counter", "Prompts that resumed from a snapshot.", m.cache_hits);
  put("cache_misses_total", "counter", "Prompts computed from their first token.", m.cache_misses);
  put("cache_evictions_total", "counter", "Snapshots dropped for space.", m.cache_evictions);
  put("http_connections", "gauge", "Open connections.", http.connections);
  put("http_connections_total", "counter", "Connections accepted.", http.accepted);
  put("http_requests_active", "gauge", "HTTP requests being answered.", http.active);
  put("http_timeouts_total", "counter", "Connections closed for stalled headers, bodies or readers.", http.timeouts);
  put("http_disconnects_total", "counter", "Clients gone before their answer was complete.", http.disconnects);
  put("http_slow_readers_total", "counter", "Clients cut off because they did not read.", http.slow_readers);
  put("client_cancels_total", "counter", "Generations cancelled because their client went away.", stats.cancelled.load());
  put("tool_calls_in_reasoning_total", "counter", "Tool calls written before the end of reasoning.", stats.calls_in_reasoning.load());
  put("tool_calls_malformed_total", "counter", "Texts that began like a tool call and were passed on as text.", stats.malformed_calls.load());
  out += "# HELP heirloom_http_requests_total HTTP requests by path and status.\n# TYPE heirloom_http_requests_total counter\n";
  for (const auto& [key, count] : requests) {
    out += fmt::format("heirloom_http_requests_total{{path=\"{}\",status=\"{}\"}} {}\n", escape_label(key.first), key.second, count);
  }
  const std::lock_guard lock(stats.mutex);
  out += "# HELP heirloom_time_to_first_token_seconds Time from admission to the first token.\n"
         "# TYPE heirloom_time_to_first_token_seconds histogram\n";
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < std::size(kFirstTokenBounds); ++i) {
    if (i < stats.first_token_buckets.size()) below += stats.first_token_buckets[i];
    out += fmt::format("heirloom_time_to_first_token_seconds_bucket{{le=\"{}\"}} {}\n", kFirstTokenBounds[i], below);
  }
  out += fmt::format(
      "heirloom_time_to_first_token_seconds_bucket{{le=\"+Inf\"}} {0}\nheirloom_time_to_first_token_seconds_sum {1}\n"
      "heirloom_time_to_first_token_seconds_count {0}\n",
      stats.first_token_count, stats.first_token_sum);
  return out;
}

}  // namespace heirloom::server
