// Facts about the model's chat template that the server needs, found by rendering small probes with it.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "heirloom/engine.h"

namespace heirloom::server {

enum class CallStyle { xml, json };

class TemplateTraits {
 public:
  explicit TemplateTraits(const Engine& engine) : engine_(engine) {}

  /// With these template arguments the prompt ends inside <think>: what comes first is reasoning.
  bool starts_in_reasoning(const Json& template_kwargs);
  /// How the template tells the model to write tool calls.
  CallStyle call_style();

 private:
  std::string render(const Json& tools, const Json& template_kwargs) const;

  const Engine& engine_;
  std::mutex mutex_;
  std::map<std::string, bool> reasoning_;
  std::optional<CallStyle> call_style_;
};

}  // namespace heirloom::server
