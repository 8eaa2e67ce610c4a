#include "cli/question_file.h"

#include <fstream>

#include "base/check.h"
#include "base/json.h"
#include "cli/pictures.h"

namespace heirloom::cli {
namespace {

std::string text_field(const Question& question, const char* key, std::string otherwise) {
  if (!question.json.contains(key)) return otherwise;
  const Json& value = question.json[key];
  if (!value.is_string()) fail(ErrorKind::bad_file, "{}: \"{}\" is {}, expected a string", question.where, key, value.type_name());
  return value.get<std::string>();
}

}  // namespace

std::vector<Question> read_questions(const std::vector<std::string>& files) {
  std::vector<Question> questions;
  for (const std::string& file : files) {
    std::ifstream stream(file);
    if (!stream) fail(ErrorKind::bad_file, "{}: cannot open; expected a .jsonl file of questions", file);
    std::string line;
    for (int number = 1; std::getline(stream, line); ++number) {
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      Question question;
      question.where = fmt::format("{}:{}", file, number);
      question.json = parse_json(line, question.where);
      if (!question.json.is_object() || !question.json.contains("messages")) {
        fail(ErrorKind::bad_file, "{}: expected an object with \"messages\"", question.where);
      }
      question.id = text_field(question, "id", question.where);
      question.task = text_field(question, "task", std::filesystem::path(file).stem().string());
      question.key = text_field(question, "key", text_field(question, "expected", ""));
      question.folder = std::filesystem::path(file).parent_path();
      questions.push_back(std::move(question));
    }
  }
  if (questions.empty()) fail(ErrorKind::usage, "no questions in the given files");
  return questions;
}

/// The one picture stands as {"type": "image"} in the messages and as a path beside them.
Request make_request(const Question& question) {
  Json conversation = question.json;
  if (conversation.contains("image") && conversation["image"].is_string()) {
    for (Json& message : conversation["messages"]) {
      if (!message.contains("content") || !message["content"].is_array()) continue;
      for (Json& part : message["content"]) {
        if (part.is_object() && part.value("type", "") == "image" && !part.contains("image")) part["image"] = conversation["image"];
      }
    }
  }
  Request request;
  read_conversation(conversation, question.folder, question.where, request);
  return request;
}

}  // namespace heirloom::cli
