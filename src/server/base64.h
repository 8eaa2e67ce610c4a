// Base64 (RFC 4648) of pictures in data URIs and of embeddings.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heirloom::server {

/// Standard or URL-safe alphabet, padding optional, white space skipped; nullopt if anything else occurs.
std::optional<std::vector<std::byte>> base64_decode(std::string_view text);
std::string base64_encode(std::span<const std::byte> bytes);

}  // namespace heirloom::server
