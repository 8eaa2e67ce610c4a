// The orientation of a picture from its metadata, as PIL's Image.getexif finds it: the EXIF block first, then
// XMP.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

namespace heirloom {

/// Tag 0x0112 of the first directory of an EXIF block (a TIFF header, with or without "Exif\0\0" before it).
/// nullopt when absent or unreadable; the value is not checked.
std::optional<int> exif_orientation(std::span<const std::byte> block);

/// tiff:Orientation of an XMP packet, as attribute or element.
std::optional<int> xmp_orientation(std::string_view packet);

}  // namespace heirloom
