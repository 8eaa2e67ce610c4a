// Unicode normalisation form C, in linear time and flat memory, with the data of the reference's own normaliser (its
// Unicode version is older than that of its regex classes; see tools/make_unicode_tables.py).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace heirloom::text {

struct NfcPair {
  char32_t composed, first, second;
};
struct CombiningRun {
  char32_t first, last;
  std::uint8_t combining_class;
};

extern const std::span<const NfcPair> kNfcPairs;
extern const std::span<const NfcPair> kNfcOneWay;
extern const std::span<const CombiningRun> kCombiningRuns;

/// True if NFC surely leaves `valid` (UTF-8) unchanged; false means "may change".
bool is_surely_nfc(std::string_view valid);

/// NFC of valid UTF-8. Linear in the input also for long runs of combining marks of mixed classes, which are ordered by
/// a stable sort instead of the usual exchange sort.
std::string to_nfc(std::string_view valid);

}  // namespace heirloom::text
