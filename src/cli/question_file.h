// Question files: one JSON object a line with "messages" and, where they apply, "image", "tools", "enable_thinking", "id",
// "task", "key". `eval` asks them; `prune` calibrates on them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "heirloom/engine.h"

namespace heirloom::cli {

struct Question {
  std::string id, task, key, where;  // where: FILE:LINE, for messages
  Json json;
  std::filesystem::path folder;      // pictures are relative to it
};

/// All questions of the files, in order. Error{bad_file} for a file that cannot be read or a line that is no question,
/// Error{usage} if there are none.
std::vector<Question> read_questions(const std::vector<std::string>& files);

/// The conversation as a request, its pictures read. Errors as read_conversation.
Request make_request(const Question& question);

}  // namespace heirloom::cli
