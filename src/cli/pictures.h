// Pictures and conversations from files, in the form that the engine takes.
#pragma once

#include <filesystem>
#include <string>

#include "heirloom/engine.h"

namespace heirloom::cli {

/// The bytes of a picture file. Error{bad_file} if it cannot be read or is implausibly large.
ImageInput read_picture(const std::filesystem::path& path);

/// A conversation {"messages", "tools", "enable_thinking"}. Content parts that name a picture (type image or image_url;
/// the path under "image", "path", "image_url" or "image_url.url", relative to `folder`) become {"type":
/// "image"} parts, and their bytes go to request.images in order. Error{bad_file, usage} naming `source`.
void read_conversation(const Json& conversation, const std::filesystem::path& folder, const std::string& source,
                       Request& request);

}  // namespace heirloom::cli
