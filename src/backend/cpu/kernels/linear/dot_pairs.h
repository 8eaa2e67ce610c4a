// Dot of the tiers that multiply bytes by vpmaddubsw (unsigned codes times signed x, added by pairs with 16-bit saturation):
// ssse3, avx2, avx512. Written over multiply_pairs, add_pairs, widen (pairs to 32 bits), set_codes, add_codes, unbias,
// magnitude and with_sign_of of the tier.
#pragma once

#include <cstdint>

namespace heirloom::cpu::HEIRLOOM_ISA {
namespace {

template <int kMaxCode>
struct Dot {
  static constexpr int kTogether = 1;
  static constexpr int kSteps = 32767 / (kMaxCode * 127 * 2);  // additions that 16 bits hold: 8, 4, 2 for 4, 5, 6 bits
  Codes acc, pairs;
  int steps;
  HEIRLOOM_INLINE void start(std::int32_t offset) {
    acc = set_codes(offset);
    steps = 0;
  }
  HEIRLOOM_INLINE void add(Codes codes, const std::int8_t* x) {
    const Codes product = multiply_pairs(codes, broadcast4(x));
    pairs = steps % kSteps == 0 ? product : add_pairs(pairs, product);
    if (++steps % kSteps == 0) acc = add_codes(acc, widen(pairs));
  }
  HEIRLOOM_INLINE Codes sum() const { return steps % kSteps == 0 ? acc : add_codes(acc, widen(pairs)); }
};

// Biased bytes: |w| * (x with w's sign), so that a pair stays below 2^15 (128 * 127 * 2); no offset is left to cancel.
template <>
struct Dot<255> {
  static constexpr int kTogether = 1;
  Codes acc;
  HEIRLOOM_INLINE void start(std::int32_t) { acc = set_codes(0); }
  HEIRLOOM_INLINE void add(Codes codes, const std::int8_t* x) {
    const Codes weights = unbias(codes);
    acc = add_codes(acc, widen(multiply_pairs(magnitude(weights), with_sign_of(broadcast4(x), weights))));
  }
  HEIRLOOM_INLINE Codes sum() const { return acc; }
};

}  // namespace
}  // namespace heirloom::cpu::HEIRLOOM_ISA
