// The byte-level alphabet of GPT-2 style vocabularies: every byte is written as one printable code point, so that any
// byte string is a valid JSON string (Radford et al. 2019, encoder.py, bytes_to_unicode).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace heirloom::text {

/// UTF-8 of the alphabet's character for a byte.
std::string_view byte_to_alphabet(unsigned char byte);

/// The bytes a vocabulary entry stands for; nullopt if a character outside the alphabet occurs or UTF-8 is broken.
std::optional<std::string> alphabet_to_bytes(std::string_view token);

/// The vocabulary spelling of a byte string.
std::string bytes_to_alphabet(std::string_view bytes);

}  // namespace heirloom::text
