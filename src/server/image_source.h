// Pictures as requests name them: data URIs, and addresses only if the server's owner allows it. Files of the server and
// private networks are never read.
#pragma once

#include <string>
#include <string_view>

#include "heirloom/engine.h"

namespace heirloom::server {

struct ImagePolicy {
  bool accepted = false;        // the model takes pictures
  std::size_t max_images = 128;  // of one request
};

/// Bytes of the picture that `url` names. Throws ApiError(400) that names `path`. Whether the bytes are a picture is found out
/// by the decoder.
ImageInput load_image_url(std::string_view url, const std::string& path, const ImagePolicy& policy);
/// The same for bare base64 text with a media type (Anthropic's source object).
ImageInput load_image_base64(std::string_view data, std::string_view media_type, const std::string& path,
                             const ImagePolicy& policy);

}  // namespace heirloom::server
