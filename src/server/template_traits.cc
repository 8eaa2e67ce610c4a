#include "server/template_traits.h"

namespace heirloom::server {
namespace {

constexpr std::size_t kMostRemembered = 64;  // clients choose the arguments

}  // namespace

std::string TemplateTraits::render(const Json& tools, const Json& template_kwargs) const {
  Request probe;
  probe.messages = Json::array({{{"role", "user"}, {"content", "probe"}}});
  probe.tools = tools;
  probe.template_kwargs = template_kwargs;
  return engine_.inspect_prompt(probe).text;
}

bool TemplateTraits::starts_in_reasoning(const Json& template_kwargs) {
  const std::string key = template_kwargs.dump(-1, ' ', false, Json::error_handler_t::replace);
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = reasoning_.find(key); known != reasoning_.end()) return known->second;
  }
  std::string text = render(Json(), template_kwargs);
  text.erase(text.find_last_not_of(" \n\r\t") + 1);
  const bool result = text.ends_with("<think>");
  const std::lock_guard lock(mutex_);
  if (reasoning_.size() >= kMostRemembered) reasoning_.clear();
  reasoning_[key] = result;
  return result;
}

CallStyle TemplateTraits::call_style() {
  const std::lock_guard lock(mutex_);
  if (!call_style_) {
    const Json tool{{"type", "function"}, {"function", {{"name", "probe"}, {"description", "probe"}, {"parameters", Json::object()}}}};
    call_style_ = render(Json::array({tool}), Json::object()).find("<function=") != std::string::npos ? CallStyle::xml : CallStyle::json;
  }
  return *call_style_;
}

}  // namespace heirloom::server
