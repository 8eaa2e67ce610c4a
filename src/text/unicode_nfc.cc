#include "text/unicode_nfc.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <vector>

#include "text/utf8.h"

namespace heirloom::text {
namespace {

// Hangul syllables are composed by arithmetic: Unicode Standard, section 3.12.
constexpr char32_t kSBase = 0xAC00, kLBase = 0x1100, kVBase = 0x1161, kTBase = 0x11A7;
constexpr char32_t kLCount = 19, kVCount = 21, kTCount = 28, kSCount = kLCount * kVCount * kTCount;

struct Data {
  enum Flag : std::uint8_t { decomposes = 1, may_be_second = 2 };
  std::unordered_map<char32_t, std::pair<char32_t, char32_t>> decomposition;
  std::unordered_map<std::uint64_t, char32_t> composition;
  std::vector<std::uint8_t> combining_class = std::vector<std::uint8_t>(0x110000, 0);
  std::vector<std::uint8_t> flags = std::vector<std::uint8_t>(0x110000, 0);

  static std::uint64_t key(char32_t a, char32_t b) { return static_cast<std::uint64_t>(a) << 32 | b; }

  Data() {
    for (const auto& pair : kNfcPairs) {
      decomposition[pair.composed] = {pair.first, pair.second};
      composition[key(pair.first, pair.second)] = pair.composed;
      flags[pair.composed] |= decomposes;
      flags[pair.second] |= may_be_second;
    }
    for (const auto& pair : kNfcOneWay) {
      decomposition[pair.composed] = {pair.first, pair.second};
      flags[pair.composed] |= decomposes;
    }
    for (const auto& run : kCombiningRuns) {
      for (char32_t c = run.first; c <= run.last; ++c) combining_class[c] = run.combining_class;
    }
    for (char32_t c = kVBase; c < kVBase + kVCount; ++c) flags[c] |= may_be_second;
    for (char32_t c = kTBase + 1; c < kTBase + kTCount; ++c) flags[c] |= may_be_second;
  }

  static const Data& get() {
    static const Data data;
    return data;
  }
};

void decompose(const Data& data, char32_t c, std::vector<char32_t>& out) {
  if (c >= kSBase && c < kSBase + kSCount) {
    const char32_t s = c - kSBase;
    out.push_back(kLBase + s / (kVCount * kTCount));
    out.push_back(kVBase + s % (kVCount * kTCount) / kTCount);
    if (s % kTCount) out.push_back(kTBase + s % kTCount);
    return;
  }
  if (c < 0xC0 || !(data.flags[c] & Data::decomposes)) {
    out.push_back(c);
    return;
  }
  const auto [first, second] = data.decomposition.at(c);
  decompose(data, first, out);  // nesting is at most four levels deep in the data
  if (second) out.push_back(second);
}

/// Orders each run of characters with a non-zero combining class by class, stably.
void reorder(const Data& data, std::vector<char32_t>& text) {
  std::vector<char32_t> sorted;
  for (std::size_t i = 0; i < text.size();) {
    if (data.combining_class[text[i]] == 0) {
      ++i;
      continue;
    }
    std::size_t end = i;
    bool ordered = true;
    std::array<std::size_t, 257> start{};
    for (; end < text.size() && data.combining_class[text[end]] != 0; ++end) {
      ordered &= end == i || data.combining_class[text[end - 1]] <= data.combining_class[text[end]];
      ++start[data.combining_class[text[end]] + 1u];
    }
    if (!ordered) {  // counting sort: linear however long the run is
      for (std::size_t k = 1; k < start.size(); ++k) start[k] += start[k - 1];
      sorted.assign(end - i, 0);
      for (std::size_t k = i; k < end; ++k) sorted[start[data.combining_class[text[k]]]++] = text[k];
      std::copy(sorted.begin(), sorted.end(), text.begin() + static_cast<std::ptrdiff_t>(i));
    }
    i = end;
  }
}

char32_t compose_pair(const Data& data, char32_t a, char32_t b) {
  if (a >= kLBase && a < kLBase + kLCount && b >= kVBase && b < kVBase + kVCount) {
    return kSBase + ((a - kLBase) * kVCount + (b - kVBase)) * kTCount;
  }
  if (a >= kSBase && a < kSBase + kSCount && (a - kSBase) % kTCount == 0 && b > kTBase && b < kTBase + kTCount) {
    return a + (b - kTBase);
  }
  if (!(data.flags[b] & Data::may_be_second)) return 0;
  const auto it = data.composition.find(Data::key(a, b));
  return it == data.composition.end() ? 0 : it->second;
}

void compose(const Data& data, std::vector<char32_t>& text) {
  std::size_t out = 0;
  std::size_t starter = SIZE_MAX;
  int last_class = -1;  // class of the last character kept after the starter; -1: none
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char32_t c = text[i];
    const int combining_class = data.combining_class[c];
    if (starter != SIZE_MAX && (last_class == -1 || last_class < combining_class)) {
      if (const char32_t composed = compose_pair(data, text[starter], c)) {
        text[starter] = composed;
        continue;
      }
    }
    text[out] = c;
    if (combining_class == 0) {
      starter = out;
      last_class = -1;
    } else {
      last_class = combining_class;
    }
    ++out;
  }
  text.resize(out);
}

/// True if `c` neither changes on its own nor combines with what precedes it. U+0300 is the first that does either.
bool stays(const Data& data, char32_t c) {
  if (c < 0x300) return true;
  return data.combining_class[c] == 0 && !(data.flags[c] & (Data::may_be_second | Data::decomposes));
}

}  // namespace

bool is_surely_nfc(std::string_view valid) {
  const Data& data = Data::get();
  for (std::size_t i = 0; i < valid.size();) {
    if (static_cast<unsigned char>(valid[i]) < 0xCC) {  // below U+0300 (lead bytes up to CB)
      ++i;
      continue;
    }
    std::size_t size;
    if (!stays(data, decode_valid_utf8(valid.data() + i, size))) return false;
    i += size;
  }
  return true;
}

std::string to_nfc(std::string_view valid) {
  if (is_surely_nfc(valid)) return std::string(valid);
  const Data& data = Data::get();
  // Only the stretch from the last stable character before a "may change" character to the next stable one is worked on.
  std::string out;
  out.reserve(valid.size());
  std::vector<char32_t> work;
  std::size_t copied = 0;
  std::size_t previous = 0;  // start of the character before i
  for (std::size_t i = 0; i < valid.size();) {
    std::size_t size;
    const char32_t c = decode_valid_utf8(valid.data() + i, size);
    if (stays(data, c)) {
      previous = i;
      i += size;
      continue;
    }
    const std::size_t begin = std::max(copied, previous);
    out.append(valid, copied, begin - copied);
    work.clear();
    std::size_t end = begin;
    while (end < valid.size()) {
      const char32_t d = decode_valid_utf8(valid.data() + end, size);
      if (end > i && stays(data, d)) break;
      decompose(data, d, work);
      end += size;
    }
    reorder(data, work);
    compose(data, work);
    for (const char32_t d : work) append_utf8(out, d);
    copied = previous = i = end;
  }
  out.append(valid, copied, valid.size() - copied);
  return out;
}

}  // namespace heirloom::text
