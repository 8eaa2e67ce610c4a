// A conversation that a person has on the terminal: messages, pictures waiting for the next message, and the file it is kept
// in. Written after each turn, replaced as a whole, so that a kill loses at most the turn in progress.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "heirloom/engine.h"

namespace heirloom::cli {

class ChatSession {
 public:
  /// `file` may be empty (nothing is kept). An existing file is continued; Error{bad_file} if it is none of ours.
  ChatSession(std::filesystem::path file, const std::string& system, bool thinking);

  /// A picture for the next message; read at once, so that a wrong name is told now. Error{bad_file}.
  void attach(const std::string& path);
  /// The request for a new user message with the attached pictures.
  Request ask(const std::string& text);
  void answered(const std::string& text);
  void forget_question();  // the last message was not answered
  bool undo();             // takes back the last question and answer; false if there is none
  void restart();
  void restart(const std::string& system);
  bool toggle_thinking() { return thinking_ = !thinking_; }
  int turns() const;

 private:
  void save() const;

  std::filesystem::path file_;
  std::string system_;
  bool thinking_;
  Json messages_ = Json::array();
  std::vector<std::string> attached_;
};

}  // namespace heirloom::cli
