// Endpoints that only report: models, health, metrics.
#pragma once

#include <string>

#include "server/api_context.h"
#include "server/http_server.h"

namespace heirloom::server {

Json models_list(const Engine& engine, std::int64_t created);
Json model_object(const Engine& engine, std::int64_t created);
/// Prometheus text format.
std::string metrics_text(const Engine& engine, GenerationStats& stats, const HttpCounters& http,
                         const std::map<std::pair<std::string, int>, std::uint64_t>& requests);

}  // namespace heirloom::server
