#include "image/resize.h"

#include <emmintrin.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "base/check.h"

namespace heirloom {
namespace {

// Pairs of taps that the horizontal pass sums between two looks at its counter: four taps are all that a
// bicubic enlargement has.
constexpr std::size_t kPairStep = 2;

double filter_value(ResizeFilter filter, double x) {
  x = std::abs(x);
  if (filter == ResizeFilter::bilinear) return x < 1.0 ? 1.0 - x : 0.0;
  constexpr double kA = -0.5;
  if (x < 1.0) return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1.0;
  if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * kA;
  return 0.0;
}

/// The weights of two neighbouring taps, four times over: the second operand of pmaddwd for four sums.
struct alignas(16) TapPair {
  std::array<std::int16_t, 8> lanes{};
};

/// Fixed-point weights of one axis. Taps come in pairs because pmaddwd (SSE2, so every x86-64 has it) sums
/// two products of 16-bit values; what fills up the last ones weighs nothing.
struct AxisWeights {
  std::size_t pairs = 0;           // per output position
  std::vector<std::size_t> first;  // [out] first input position
  std::vector<TapPair> weight;     // [out, pairs]
  int precision = 0;               // fraction bits
};

/// `pairs` of the result is a multiple of `pair_step`.
AxisWeights axis_weights(std::uint32_t in, std::uint32_t out, ResizeFilter filter, std::size_t pair_step) {
  const double scale = static_cast<double>(in) / out;
  const double reduction = std::max(scale, 1.0);
  // An axis that keeps its length has one tap of weight 1.
  const double support = in == out ? 0.5 : (filter == ResizeFilter::bicubic ? 2.0 : 1.0) * reduction;
  const auto most = static_cast<std::size_t>(std::ceil(support)) * 2 + 1;
  AxisWeights axis;
  axis.first.resize(out);
  std::vector<double> exact(out * most);
  double largest = 0.0;
  std::size_t taps = 0;
  for (std::size_t o = 0; o < out; ++o) {
    const double centre = (static_cast<double>(o) + 0.5) * scale;
    const auto low = static_cast<std::int64_t>(std::max(centre - support + 0.5, 0.0));
    const auto high = std::min<std::int64_t>(static_cast<std::int64_t>(centre + support + 0.5), in);
    axis.first[o] = static_cast<std::size_t>(low);
    taps = std::max(taps, static_cast<std::size_t>(high - low));
    double* values = &exact[o * most];
    double total = 0.0;
    for (std::int64_t i = low; i < high; ++i) {
      const double value = filter_value(filter, (static_cast<double>(i) - centre + 0.5) / reduction);
      values[i - low] = value;
      total += value;
    }
    for (std::int64_t i = 0; i < high - low; ++i) {
      values[i] /= total;
      largest = std::max(largest, values[i]);
    }
  }
  // As many fraction bits as the largest weight of the axis leaves room for in 16 bits, at most 22.
  while (axis.precision < 22) {
    ++axis.precision;
    if (static_cast<std::int64_t>(0.5 + largest * static_cast<double>(1 << (axis.precision + 1))) >= 1 << 15)
      break;
  }
  const auto one = static_cast<double>(1 << axis.precision);
  axis.pairs = (taps + 2 * pair_step - 1) / (2 * pair_step) * pair_step;
  axis.weight.resize(out * axis.pairs);
  for (std::size_t o = 0; o < out; ++o) {
    for (std::size_t k = 0; k < taps; ++k) {
      const double value = exact[o * most + k];
      const auto fixed = static_cast<std::int16_t>(value * one + (value < 0.0 ? -0.5 : 0.5));
      auto& lanes = axis.weight[o * axis.pairs + k / 2].lanes;
      for (std::size_t lane = k % 2; lane < lanes.size(); lane += 2) lanes[lane] = fixed;
    }
  }
  return axis;
}

__m128i load(const TapPair& pair) {
  return _mm_load_si128(reinterpret_cast<const __m128i*>(pair.lanes.data()));
}

__m128i load_4_bytes(const std::uint8_t* from) {
  std::int32_t bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return _mm_cvtsi32_si128(bytes);
}

/// Four bytes each of red, green and blue (and of nothing), to the same place of three planes.
void store_4_pixels(__m128i bytes, std::size_t plane, std::uint8_t* to) {
  for (std::size_t c = 0; c < 3; ++c, bytes = _mm_srli_si128(bytes, 4)) {
    const std::int32_t low = _mm_cvtsi128_si32(bytes);
    std::memcpy(to + c * plane, &low, sizeof low);
  }
}

/// r r g g b b . . of the pixels at `from` and after it.
__m128i load_2_pixels(const std::uint8_t* from) {
  return _mm_unpacklo_epi8(load_4_bytes(from), load_4_bytes(from + 3));
}

/// `sums` (red, green, blue, and a fourth without meaning) with the kPairStep pairs of pixels from `from`
/// added.
__m128i add_pixels(__m128i sums, const std::uint8_t* from, const TapPair* weight) {
  for (std::size_t k = 0; k < kPairStep; ++k) {
    const __m128i both = _mm_unpacklo_epi8(load_2_pixels(from + 6 * k), _mm_setzero_si128());
    sums = _mm_add_epi32(sums, _mm_madd_epi16(both, load(weight[k])));
  }
  return sums;
}

/// The horizontal pass over one row of RGB pixels, four output positions at a time. `first` and `weight` of
/// `axis` reach to a multiple of four; `to` are three planes, each `plane` bytes after the one before.
/// `pairs` is axis.pairs, a constant when it is kPairStep: that saves the loop.
template <typename Pairs>
void resize_row(Pairs pairs, const std::uint8_t* from, const AxisWeights& axis, std::size_t plane,
                std::uint8_t* to) {
  const __m128i half = _mm_set1_epi32(1 << (axis.precision - 1));
  for (std::size_t x = 0; x < axis.first.size(); x += 4) {
    const auto pixel = [&](std::size_t o) {
      const std::uint8_t* pixels = from + 3 * axis.first[o];
      const TapPair* weight = &axis.weight[o * pairs];
      __m128i sums = half;
      for (std::size_t k = 0; k < pairs; k += kPairStep) sums = add_pixels(sums, pixels + 6 * k, weight + k);
      return _mm_srai_epi32(sums, axis.precision);
    };
    const __m128i p01 = _mm_packs_epi32(pixel(x), pixel(x + 1));
    const __m128i p23 = _mm_packs_epi32(pixel(x + 2), pixel(x + 3));
    // r0 r2 g0 g2 ... and r1 r3 g1 g3 ... to r0 r1 r2 r3 g0 g1 g2 g3 ...
    const __m128i even = _mm_unpacklo_epi16(p01, p23);
    const __m128i odd = _mm_unpackhi_epi16(p01, p23);
    store_4_pixels(_mm_packus_epi16(_mm_unpacklo_epi16(even, odd), _mm_unpackhi_epi16(even, odd)), plane,
                   to + x);
  }
}

/// What resize_row would give for `plane` positions of a row that keeps its length.
void split_row(const std::uint8_t* from, std::size_t plane, std::uint8_t* to) {
  for (std::size_t x = 0; x < plane; x += 4, from += 12)
    store_4_pixels(_mm_unpacklo_epi16(load_2_pixels(from), load_2_pixels(from + 6)), plane, to + x);
}

/// The vertical pass for one output row: `count` bytes (a multiple of 16) out of 2 x pairs rows.
void blend_rows(const std::vector<const std::uint8_t*>& rows, const TapPair* weight, std::size_t pairs,
                int precision, std::size_t count, std::uint8_t* to) {
  const __m128i zero = _mm_setzero_si128();
  const __m128i half = _mm_set1_epi32(1 << (precision - 1));
  for (std::size_t x = 0; x < count; x += 16) {
    __m128i sum[4] = {half, half, half, half};
    for (std::size_t k = 0; k < pairs; ++k) {
      const __m128i upper = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[2 * k] + x));
      const __m128i lower = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[2 * k + 1] + x));
      const __m128i factors = load(weight[k]);
      const __m128i left = _mm_unpacklo_epi8(upper, lower);
      const __m128i right = _mm_unpackhi_epi8(upper, lower);
      sum[0] = _mm_add_epi32(sum[0], _mm_madd_epi16(_mm_unpacklo_epi8(left, zero), factors));
      sum[1] = _mm_add_epi32(sum[1], _mm_madd_epi16(_mm_unpackhi_epi8(left, zero), factors));
      sum[2] = _mm_add_epi32(sum[2], _mm_madd_epi16(_mm_unpacklo_epi8(right, zero), factors));
      sum[3] = _mm_add_epi32(sum[3], _mm_madd_epi16(_mm_unpackhi_epi8(right, zero), factors));
    }
    for (__m128i& value : sum) value = _mm_srai_epi32(value, precision);
    const __m128i bytes = _mm_packus_epi16(_mm_packs_epi32(sum[0], sum[1]), _mm_packs_epi32(sum[2], sum[3]));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + x), bytes);
  }
}

}  // namespace

void resize_rows(const Image& source, std::uint32_t width, std::uint32_t height, ResizeFilter filter,
                 const RowSink& sink) {
  HEIRLOOM_CHECK(source.width > 0 && source.height > 0 && width > 0 && height > 0);
  AxisWeights across = axis_weights(source.width, width, filter, kPairStep);
  const AxisWeights down = axis_weights(source.height, height, filter, 1);
  const std::size_t plane = (std::size_t{width} + 15) / 16 * 16;
  const std::size_t row_bytes = 3 * plane;
  across.first.resize(plane);
  across.weight.resize(plane * across.pairs);

  // Source rows are copied to where reading past their end is allowed: the last taps may weigh nothing, and
  // pixels are read as four bytes.
  std::vector<std::uint8_t> padded(3 * std::max<std::size_t>(source.width, plane) + 6 * across.pairs + 1);
  // The horizontally resized rows that the current output row needs; row r lies at r % window.
  const std::size_t window = 2 * down.pairs;
  std::vector<std::uint8_t> narrow(window * row_bytes);
  std::vector<const std::uint8_t*> rows(window);
  std::vector<std::uint8_t> blended(row_bytes);
  std::size_t done = 0;
  for (std::size_t y = 0; y < height; ++y) {
    for (std::size_t k = 0; k < window; ++k) {
      const std::size_t row = std::min<std::size_t>(down.first[y] + k, source.height - 1);
      for (; done <= row; ++done) {
        std::memcpy(padded.data(), &source.rgb[done * source.width * 3], std::size_t{source.width} * 3);
        std::uint8_t* to = &narrow[done % window * row_bytes];
        if (width == source.width) {
          split_row(padded.data(), plane, to);
        } else if (across.pairs == kPairStep) {
          resize_row(std::integral_constant<std::size_t, kPairStep>{}, padded.data(), across, plane, to);
        } else {
          resize_row(across.pairs, padded.data(), across, plane, to);
        }
      }
      rows[k] = &narrow[row % window * row_bytes];
    }
    const std::uint8_t* result = rows[0];
    if (height != source.height) {
      blend_rows(rows, &down.weight[y * down.pairs], down.pairs, down.precision, row_bytes, blended.data());
      result = blended.data();
    }
    sink(y, {result, result + plane, result + 2 * plane});
  }
}

}  // namespace heirloom
