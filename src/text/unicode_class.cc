#include "text/unicode_class.h"

#include <map>
#include <vector>

namespace heirloom::text {

const CharClasses& CharClasses::get() {
  static const CharClasses classes;
  return classes;
}

CharClasses::CharClasses() {
  std::vector<CharClass> flat(0x110000, CharClass::other);
  const auto mark = [&](std::span<const CodePointRange> ranges, CharClass value) {
    for (const auto& range : ranges) {
      for (char32_t c = range.first; c <= range.last; ++c) flat[c] = value;
    }
  };
  mark(kLetterRanges, CharClass::letter);
  mark(kMarkRanges, CharClass::mark);
  mark(kNumberRanges, CharClass::number);
  mark(kSpaceRanges, CharClass::space);
  std::map<Page, std::uint16_t> index;
  std::vector<Page> unique;
  for (std::size_t i = 0; i < page_of_.size(); ++i) {
    Page page;
    for (std::size_t j = 0; j < page.size(); ++j) page[j] = flat[i * 256 + j];
    const auto [it, added] = index.try_emplace(page, static_cast<std::uint16_t>(unique.size()));
    if (added) unique.push_back(page);
    page_of_[i] = it->second;
  }
  pages_ = std::make_unique<Page[]>(unique.size());
  for (std::size_t i = 0; i < unique.size(); ++i) pages_[i] = unique[i];
}

}  // namespace heirloom::text
