#include "server/image_source.h"

#include <algorithm>
#include <cctype>

#include "base/printable.h"
#include "server/api_error.h"
#include "server/base64.h"

namespace heirloom::server {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

}  // namespace

ImageInput load_image_base64(std::string_view data, std::string_view media_type, const std::string& path,
                             const ImagePolicy& policy) {
  if (!policy.accepted) bad_field(path, "this model does not take pictures");
  if (!lower(media_type).starts_with("image/")) {
    bad_field(path, "media type must be image/..., found \"{}\"", printable(media_type, 40));
  }
  auto bytes = base64_decode(data);
  if (!bytes) bad_field(path, "the picture is not valid base64");
  if (bytes->empty()) bad_field(path, "the picture is empty");
  ImageInput image;
  image.bytes = std::move(*bytes);
  image.name = path;
  return image;
}

ImageInput load_image_url(std::string_view url, const std::string& path, const ImagePolicy& policy) {
  if (!policy.accepted) bad_field(path, "this model does not take pictures");
  const std::string head = lower(url.substr(0, 64));
  if (!head.starts_with("data:")) {
    bad_field(path, "only data URIs (data:image/png;base64,...) are read; addresses such as \"{}\" are not fetched",
              printable(url, 40));
  }
  const auto comma = url.find(',');
  if (comma == std::string_view::npos) bad_field(path, "a data URI needs a comma before its data");
  const std::string_view header = url.substr(5, comma - 5);
  const auto semicolon = header.find(';');
  const std::string_view media_type = header.substr(0, semicolon);
  if (semicolon == std::string_view::npos || !lower(header).ends_with(";base64")) {
    bad_field(path, "the data URI must be base64 (data:image/png;base64,...)");
  }
  return load_image_base64(url.substr(comma + 1), media_type, path, policy);
}

}  // namespace heirloom::server
