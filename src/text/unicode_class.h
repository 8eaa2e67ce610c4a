// Character classes of the pre-tokenisation patterns: \p{L}, \p{M}, \p{N} and \s exactly as the reference's regex engine
// has them (the data is read off it, see tools/make_unicode_tables.py).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

namespace heirloom::text {

struct CodePointRange {
  char32_t first, last;  // inclusive
};

extern const std::span<const CodePointRange> kLetterRanges;
extern const std::span<const CodePointRange> kMarkRanges;
extern const std::span<const CodePointRange> kNumberRanges;
extern const std::span<const CodePointRange> kSpaceRanges;

enum class CharClass : std::uint8_t { other, letter, mark, number, space };

/// Class of every code point, in a two-stage table of 256-entry pages. Built once.
class CharClasses {
 public:
  static const CharClasses& get();
  CharClass operator[](char32_t c) const noexcept {
    return c < 0x110000 ? pages_[page_of_[c >> 8]][c & 0xFF] : CharClass::other;
  }

 private:
  CharClasses();
  using Page = std::array<CharClass, 256>;
  std::array<std::uint16_t, 0x1100> page_of_{};
  std::unique_ptr<Page[]> pages_;
};

}  // namespace heirloom::text
