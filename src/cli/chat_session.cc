#include "cli/chat_session.h"

#include <fstream>

#include "base/check.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "cli/pictures.h"

namespace heirloom::cli {

ChatSession::ChatSession(std::filesystem::path file, const std::string& system, bool thinking)
    : file_(std::move(file)), system_(system), thinking_(thinking) {
  std::error_code error;
  if (!file_.empty() && std::filesystem::exists(file_, error)) {
    const Json json = parse_json(read_text_file(file_), file_.string());
    if (!json.is_object() || !json.contains("messages") || !json["messages"].is_array()) {
      fail(ErrorKind::bad_file, "{}: not a conversation that chat --session wrote; expected an object with \"messages\"", file_.string());
    }
    messages_ = json["messages"];
    return;
  }
  restart();
}

void ChatSession::restart(const std::string& system) {
  system_ = system;
  restart();
}

void ChatSession::restart() {
  messages_ = Json::array();
  attached_.clear();
  if (!system_.empty()) messages_.push_back({{"role", "system"}, {"content", system_}});
  if (!file_.empty()) save();
}

void ChatSession::attach(const std::string& path) {
  const std::string absolute = std::filesystem::absolute(path).string();
  read_picture(absolute);
  attached_.push_back(absolute);
}

Request ChatSession::ask(const std::string& text) {
  Json content = Json::array();
  for (const std::string& path : attached_) content.push_back({{"type", "image"}, {"image", path}});
  content.push_back({{"type", "text"}, {"text", text}});
  messages_.push_back({{"role", "user"}, {"content", attached_.empty() ? Json(text) : std::move(content)}});
  attached_.clear();
  Request request;
  read_conversation(Json{{"messages", messages_}}, {}, file_.empty() ? "conversation" : file_.string(), request);
  if (thinking_) request.template_kwargs["enable_thinking"] = true;
  return request;
}

void ChatSession::answered(const std::string& text) {
  messages_.push_back({{"role", "assistant"}, {"content", text}});
  if (!file_.empty()) save();
}

void ChatSession::forget_question() {
  if (!messages_.empty() && messages_.back()["role"] == "user") messages_.erase(messages_.size() - 1);
}

bool ChatSession::undo() {
  if (turns() == 0) return false;
  while (!messages_.empty() && messages_.back()["role"] != "user") messages_.erase(messages_.size() - 1);
  forget_question();
  if (!file_.empty()) save();
  return true;
}

int ChatSession::turns() const {
  int count = 0;
  for (const Json& message : messages_) count += message.value("role", "") == "user";
  return count;
}

void ChatSession::save() const {
  const std::filesystem::path partial = file_.string() + ".partial";
  {
    std::ofstream stream(partial, std::ios::binary | std::ios::trunc);
    stream << Json{{"messages", messages_}}.dump(1, ' ', false, Json::error_handler_t::replace) << '\n';
    if (!stream.flush()) fail(ErrorKind::bad_file, "{}: cannot write the conversation", partial.string());
  }
  std::filesystem::rename(partial, file_);
}

}  // namespace heirloom::cli
