#include "cli/pictures.h"

#include <cstring>

#include "base/check.h"
#include "base/mapped_file.h"

namespace heirloom::cli {
namespace {

constexpr std::uint64_t kLargestPicture = 256ull << 20;

std::string picture_path(const Json& part, const std::string& source) {
  for (const char* key : {"image", "path", "image_url"}) {
    if (!part.contains(key)) continue;
    const Json& value = part[key];
    if (value.is_string()) return value.get<std::string>();
    if (value.is_object() && value.contains("url") && value["url"].is_string()) return value["url"].get<std::string>();
  }
  fail(ErrorKind::usage, "{}: a picture part without a path; expected {{\"type\": \"image\", \"image\": \"FILE\"}}", source);
}

}  // namespace

ImageInput read_picture(const std::filesystem::path& path) {
  const std::string text = read_text_file(path, kLargestPicture);
  ImageInput image;
  image.name = path.string();
  image.bytes.resize(text.size());
  std::memcpy(image.bytes.data(), text.data(), text.size());
  return image;
}

void read_conversation(const Json& conversation, const std::filesystem::path& folder, const std::string& source,
                       Request& request) {
  if (!conversation.is_object() || !conversation.contains("messages") || !conversation["messages"].is_array()) {
    fail(ErrorKind::usage, "{}: expected a JSON object with an array \"messages\"", source);
  }
  request.messages = conversation["messages"];
  for (Json& message : request.messages) {
    if (!message.is_object() || !message.contains("content") || !message["content"].is_array()) continue;
    for (Json& part : message["content"]) {
      if (!part.is_object()) continue;
      const std::string type = part.value("type", "");
      if (type != "image" && type != "image_url") continue;
      const std::string path = picture_path(part, source);
      request.images.push_back(read_picture(folder / path));
      part = Json{{"type", "image"}};
    }
  }
  if (conversation.contains("tools") && !conversation["tools"].is_null()) request.tools = conversation["tools"];
  if (conversation.contains("enable_thinking") && conversation["enable_thinking"].is_boolean()) {
    request.template_kwargs["enable_thinking"] = conversation["enable_thinking"];
  }
}

}  // namespace heirloom::cli
