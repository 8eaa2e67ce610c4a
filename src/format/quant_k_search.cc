// Encoders of Q4_K, Q5_K and Q6_K. The format fixes the grid x = d sc q - dmin m; the encoder's freedom is
// the choice of d, dmin, every group's (sc, m) and every q. We minimise the weighted squared error sum w (x'
// - x)^2 directly, in three steps:
//   1. per group, real-valued scale and minimum: several starting spreads, each improved by weighted least
//   squares for fixed
//      levels, the best one refined by alternating "nearest levels" and "least squares" (Lloyd's iteration);
//   2. d and dmin so that the largest scale and minimum use the whole integer range, then per group a search
//   of the
//      neighbouring integers for (sc, m), because rounding one is best answered by moving the other;
//   3. least squares for (d, dmin) with all integers fixed, half-precision rounding, and step 2 again; the
//   better result stays.
// Super-blocks are first divided by their largest magnitude, so that squares neither overflow nor vanish.
// Sums run over four fixed lanes, so that they vectorise without any reordering: the bytes are the same on
// every CPU.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "format/quant_families.h"

namespace heirloom::quant {
namespace {

using Lanes = float __attribute__((vector_size(16)));

constexpr float kSmallestHalf = 0x1p-24f;
constexpr float kLargestHalf = 65504.0f;
constexpr int kImproveRounds = 2;

Lanes load(const float* x) {
  Lanes lanes;
  std::memcpy(&lanes, x, sizeof lanes);
  return lanes;
}

float sum(Lanes lanes) {
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

// Nearest whole number of |v| < 2^22: adding 1.5 * 2^23 leaves no fraction bits. Ties go to even.
template <typename T>
T nearest(T v) {
  return (v + 12582912.0f) - 12582912.0f;
}

// The half nearest to `value`, but neither zero (unless `value` is) nor infinite.
float to_half_scale(float value) {
  const float bounded = std::clamp(value, -kLargestHalf, kLargestHalf);
  const float half = f16_to_f32(f32_to_f16(bounded));
  if (half == 0 && value != 0) return std::copysign(kSmallestHalf, value);
  return half;
}

// How one group is coded: x ~ scale q - min with whole q in [low, high].
struct Grid {
  float low, high;
};

Lanes levels_of(Lanes x, float inverse_scale, float min, Grid grid) {
  Lanes q = nearest((x + min) * inverse_scale);
  q = q > grid.low ? q : Lanes{} + grid.low;
  return q < grid.high ? q : Lanes{} + grid.high;
}

float inverse_or_zero(float scale) {
  return scale != 0 ? 1 / scale : 0;
}

// Weighted sums of the nearest levels of a group of N.
struct LevelSums {
  float q, qq, qx;
};

template <int N>
LevelSums level_sums(const float* x, const float* w, float inverse_scale, float min, Grid grid) {
  Lanes sq{}, sqq{}, sqx{};
  for (int i = 0; i < N; i += 4) {
    const Lanes xs = load(x + i);
    const Lanes q = levels_of(xs, inverse_scale, min, grid);
    const Lanes wq = load(w + i) * q;
    sq += wq;
    sqq += wq * q;
    sqx += wq * xs;
  }
  return {sum(sq), sum(sqq), sum(sqx)};
}

template <int N>
float coding_error(const float* x, const float* w, float scale, float min, Grid grid) {
  const float inverse = inverse_or_zero(scale);
  Lanes total{};
  for (int i = 0; i < N; i += 4) {
    const Lanes xs = load(x + i);
    const Lanes error = scale * levels_of(xs, inverse, min, grid) - min - xs;
    total += load(w + i) * error * error;
  }
  return sum(total);
}

template <int N>
void write_levels(const float* x, float scale, float min, Grid grid, float* q) {
  const float inverse = inverse_or_zero(scale);
  for (int i = 0; i < N; i += 4) {
    const Lanes levels = levels_of(load(x + i), inverse, min, grid);
    std::memcpy(q + i, &levels, sizeof levels);
  }
}

// ---- Q4_K, Q5_K: 8 groups of 32, scale and min not negative, q in 0..15 or 0..31 ----

constexpr int kGroup = 32;
constexpr int kGroups = 8;

// Sums of a group that do not depend on its levels.
struct Totals {
  float w, x;
};

Totals totals_of(const float* x, const float* w) {
  Lanes sw{}, sx{};
  for (int i = 0; i < kGroup; i += 4) {
    sw += load(w + i);
    sx += load(w + i) * load(x + i);
  }
  return {sum(sw), sum(sx)};
}

struct Affine {
  float scale = 0, min = 0;
  float gain = 0;  // reduction of the squared error against coding the group as zeros; larger is better
};

// Least squares for fixed levels, with the minimum kept at zero where it would be negative.
Affine affine_fit(const Totals& t, const LevelSums& s) {
  Affine fit;
  const float det = t.w * s.qq - s.q * s.q;
  if (det > 0) {
    fit.scale = (t.w * s.qx - s.q * t.x) / det;
    fit.min = (s.q * s.qx - s.qq * t.x) / det;
  }
  if (fit.min < 0 || !(det > 0)) {
    fit.min = 0;
    fit.scale = s.qq > 0 ? s.qx / s.qq : 0;
  }
  if (!(fit.scale > 0)) return {};
  fit.gain = fit.scale * s.qx - fit.min * t.x;
  return fit;
}

Affine search_affine(const float* x, const float* w, const Totals& totals, Grid grid) {
  const auto [lowest, highest] = std::minmax_element(x, x + kGroup);
  const float low = std::min(*lowest, 0.0f);
  const float range = *highest - low;
  if (!(range > 0)) return {0, -low, 0};  // all zero, or all equal and negative
  Affine best;
  const auto improve = [&](float inverse_scale, float min) {
    const Affine fit = affine_fit(totals, level_sums<kGroup>(x, w, inverse_scale, min, grid));
    if (!(fit.gain > best.gain)) return false;
    best = fit;
    return true;
  };
  // Spreads from one level narrower than the range (outermost values clipped) to one wider.
  for (int step = -8; step <= 8; ++step)
    improve((grid.high + 0.125f * static_cast<float>(step)) / range, -low);
  for (int round = 0; round < 4 && best.scale > 0; ++round) {
    if (!improve(1 / best.scale, best.min)) break;
  }
  return best;
}

struct AffineBlock {
  float d = 0, dmin = 0;
  int scale[kGroups] = {}, min[kGroups] = {};
  float error = 0;

  float group_scale(int g) const { return d * static_cast<float>(scale[g]); }
  float group_min(int g) const { return dmin * static_cast<float>(min[g]); }
};

int nearest_integer(float target, float unit, float low, float high) {
  return unit != 0 ? static_cast<int>(nearest(std::clamp(target / unit, low, high))) : 0;
}

// For given d and dmin the best integers near scale / d and min / dmin of each group.
void choose_integers(const float* x, const float* w, const Affine* targets, Grid grid, AffineBlock& block) {
  block.error = 0;
  for (int g = 0; g < kGroups; ++g) {
    const int scale = nearest_integer(targets[g].scale, block.d, 0, 63);
    const int min = nearest_integer(targets[g].min, block.dmin, 0, 63);
    float least = HUGE_VALF;
    for (int s = std::max(scale - 1, 0); s <= std::min(scale + 1, 63); ++s) {
      for (int m = std::max(min - 1, 0); m <= std::min(min + 1, 63); ++m) {
        const float error =
            coding_error<kGroup>(x + g * kGroup, w + g * kGroup, block.d * static_cast<float>(s),
                                 block.dmin * static_cast<float>(m), grid);
        if (error < least) {
          least = error;
          block.scale[g] = s;
          block.min[g] = m;
        }
      }
    }
    block.error += least;
  }
}

// Least squares for d and dmin over the whole super-block, x ~ d (sc q) - dmin m. False if there is no usable
// solution.
bool fit_block_scales(const float* x, const float* w, const Totals* totals, Grid grid, AffineBlock& block) {
  double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;
  for (int g = 0; g < kGroups; ++g) {
    const LevelSums s = level_sums<kGroup>(x + g * kGroup, w + g * kGroup,
                                           inverse_or_zero(block.group_scale(g)), block.group_min(g), grid);
    const double scale = block.scale[g];
    const double min = block.min[g];
    aa += scale * scale * static_cast<double>(s.qq);
    ab -= scale * min * static_cast<double>(s.q);
    bb += min * min * static_cast<double>(totals[g].w);
    ax += scale * static_cast<double>(s.qx);
    bx -= min * static_cast<double>(totals[g].x);
  }
  const double det = aa * bb - ab * ab;
  double d = 0, dmin = 0;
  if (det > 1e-12 * aa * bb) {
    d = (bb * ax - ab * bx) / det;
    dmin = (aa * bx - ab * ax) / det;
  } else if (aa > 0) {
    d = ax / aa;
  }
  if (!(d > 0) || !(dmin >= 0)) return false;
  block.d = static_cast<float>(d);
  block.dmin = static_cast<float>(dmin);
  return true;
}

// `unit` is the factor that was divided out of x: d * unit and dmin * unit are halves.
AffineBlock search_affine_block(const float* x, const float* w, Grid grid, float unit, float* levels) {
  const auto rounded = [unit](float value) { return to_half_scale(value * unit) / unit; };
  Affine targets[kGroups];
  Totals totals[kGroups];
  float max_scale = 0, max_min = 0;
  for (int g = 0; g < kGroups; ++g) {
    totals[g] = totals_of(x + g * kGroup, w + g * kGroup);
    targets[g] = search_affine(x + g * kGroup, w + g * kGroup, totals[g], grid);
    max_scale = std::max(max_scale, targets[g].scale);
    max_min = std::max(max_min, targets[g].min);
  }
  AffineBlock best;
  best.d = rounded(max_scale / 63);
  best.dmin = rounded(max_min / 63);
  choose_integers(x, w, targets, grid, best);
  AffineBlock trial = best;
  for (int round = 0; round < kImproveRounds; ++round) {
    if (!fit_block_scales(x, w, totals, grid, trial)) break;
    trial.d = rounded(trial.d);
    trial.dmin = rounded(trial.dmin);
    choose_integers(x, w, targets, grid, trial);
    if (!(trial.error < best.error)) break;
    best = trial;
  }
  for (int g = 0; g < kGroups; ++g) {
    write_levels<kGroup>(x + g * kGroup, best.group_scale(g), best.group_min(g), grid, levels + g * kGroup);
  }
  return best;
}

void pack_scale_mins(const AffineBlock& block, std::uint8_t scales[12]) {
  for (int g = 0; g < 4; ++g) {
    scales[g] = static_cast<std::uint8_t>(block.scale[g] | block.scale[g + 4] >> 4 << 6);
    scales[4 + g] = static_cast<std::uint8_t>(block.min[g] | block.min[g + 4] >> 4 << 6);
    scales[8 + g] = static_cast<std::uint8_t>((block.scale[g + 4] & 15) | (block.min[g + 4] & 15) << 4);
  }
}

// ---- Q6_K: 16 groups of 16, no minimum, scale of either sign, q in -32..31 ----

constexpr int kGroup6 = 16;
constexpr int kGroups6 = 16;
constexpr Grid kGrid6{-32, 31};

float search_symmetric(const float* x, const float* w) {
  float peak = 0;
  for (int i = 0; i < kGroup6; ++i) {
    if (std::fabs(x[i]) > std::fabs(peak)) peak = x[i];
  }
  if (peak == 0) return 0;
  float best = 0, best_gain = 0;
  const auto improve = [&](float inverse_scale) {
    const LevelSums s = level_sums<kGroup6>(x, w, inverse_scale, 0, kGrid6);
    if (!(s.qq > 0)) return false;
    const float gain = s.qx * s.qx / s.qq;
    if (!(gain > best_gain)) return false;
    best_gain = gain;
    best = s.qx / s.qq;
    return true;
  };
  // The extra level is on the negative side, so the peak is tried as -32 and, for groups whose other side is
  // as long, as 31.
  for (int step = -8; step <= 8; ++step) {
    const float shift = 0.125f * static_cast<float>(step);
    improve((-32.0f + shift) / peak);
    improve((31.0f + shift) / peak);
  }
  for (int round = 0; round < 4 && best != 0; ++round) {
    if (!improve(1 / best)) break;
  }
  return best;
}

struct SymmetricBlock {
  float d = 0;
  int scale[kGroups6] = {};
  float error = 0;

  float group_scale(int g) const { return d * static_cast<float>(scale[g]); }
};

void choose_integers(const float* x, const float* w, const float* targets, SymmetricBlock& block) {
  block.error = 0;
  for (int g = 0; g < kGroups6; ++g) {
    const int scale = nearest_integer(targets[g], block.d, -128, 127);
    float least = HUGE_VALF;
    for (int s = std::max(scale - 1, -128); s <= std::min(scale + 1, 127); ++s) {
      const float error =
          coding_error<kGroup6>(x + g * kGroup6, w + g * kGroup6, block.d * static_cast<float>(s), 0, kGrid6);
      if (error < least) {
        least = error;
        block.scale[g] = s;
      }
    }
    block.error += least;
  }
}

SymmetricBlock search_symmetric_block(const float* x, const float* w, float unit, float* levels) {
  const auto rounded = [unit](float value) { return to_half_scale(value * unit) / unit; };
  float targets[kGroups6];
  float peak = 0;
  for (int g = 0; g < kGroups6; ++g) {
    targets[g] = search_symmetric(x + g * kGroup6, w + g * kGroup6);
    if (std::fabs(targets[g]) > std::fabs(peak)) peak = targets[g];
  }
  SymmetricBlock best;
  best.d = rounded(peak / -128);
  choose_integers(x, w, targets, best);
  SymmetricBlock trial = best;
  for (int round = 0; round < kImproveRounds; ++round) {
    double qq = 0, qx = 0;
    for (int g = 0; g < kGroups6; ++g) {
      const LevelSums s = level_sums<kGroup6>(x + g * kGroup6, w + g * kGroup6,
                                              inverse_or_zero(trial.group_scale(g)), 0, kGrid6);
      const double scale = trial.scale[g];
      qq += scale * scale * static_cast<double>(s.qq);
      qx += scale * static_cast<double>(s.qx);
    }
    if (!(qq > 0)) break;
    trial.d = rounded(static_cast<float>(qx / qq));
    choose_integers(x, w, targets, trial);
    if (!(trial.error < best.error)) break;
    best = trial;
  }
  for (int g = 0; g < kGroups6; ++g) {
    write_levels<kGroup6>(x + g * kGroup6, best.group_scale(g), 0, kGrid6, levels + g * kGroup6);
  }
  return best;
}

// ---- common: one super-block divided by its peak, weights with a positive sum ----

struct Normalized {
  float x[256], w[256];
  float unit;  // 0 for a super-block too small to be told from zero in half precision
};

void normalize(const float* src, const float* importance, Normalized& out) {
  float peak = 0, heaviest = 0;
  for (int i = 0; i < 256; ++i) {
    peak = std::max(peak, std::fabs(src[i]));
    if (importance != nullptr) heaviest = std::max(heaviest, importance[i]);
  }
  out.unit = peak < 0x1p-30f ? 0 : peak;
  if (out.unit == 0) return;
  for (int i = 0; i < 256; ++i) {
    out.x[i] = src[i] / peak;
    out.w[i] = 1;
    if (heaviest > 0 && std::isfinite(heaviest)) {
      // A value without any weight (or one that is not a number) still counts a little: the least squares
      // stay determined.
      const float share = importance[i] / heaviest;
      out.w[i] = share > 1e-6f ? share : 1e-6f;
    }
  }
}

template <int kMaxLevel, typename Block>
void encode_affine(const float* src, const float* importance, Block& dst, float* levels) {
  std::memset(&dst, 0, sizeof dst);
  Normalized block;
  normalize(src, importance, block);
  if (block.unit == 0) {
    std::fill(levels, levels + 256, 0.0f);
    return;
  }
  const AffineBlock found = search_affine_block(block.x, block.w, {0, kMaxLevel}, block.unit, levels);
  dst.d = store_f16(found.d * block.unit);
  dst.dmin = store_f16(found.dmin * block.unit);
  pack_scale_mins(found, dst.scales);
  for (int g = 0; g < kGroups; ++g) {
    for (int l = 0; l < kGroup; ++l) {
      const int low = static_cast<int>(levels[g * kGroup + l]) & 15;
      dst.qs[g / 2 * 32 + l] = static_cast<std::uint8_t>(dst.qs[g / 2 * 32 + l] | low << (g % 2 * 4));
    }
  }
}

const float* advance(const float* importance, std::size_t block) {
  return importance == nullptr ? nullptr : importance + block * 256;
}

}  // namespace

void quantize(const float* src, const float* importance, BlockQ4_K* dst, std::size_t blocks) {
  float levels[256];
  for (std::size_t b = 0; b < blocks; ++b)
    encode_affine<15>(src + b * 256, advance(importance, b), dst[b], levels);
}

void quantize(const float* src, const float* importance, BlockQ5_K* dst, std::size_t blocks) {
  float levels[256];
  for (std::size_t b = 0; b < blocks; ++b) {
    encode_affine<31>(src + b * 256, advance(importance, b), dst[b], levels);
    for (int i = 0; i < 256; ++i) {
      const int high = static_cast<int>(levels[i]) >> 4;
      dst[b].qh[i % 32] = static_cast<std::uint8_t>(dst[b].qh[i % 32] | high << (i / 32));
    }
  }
}

void quantize(const float* src, const float* importance, BlockQ6_K* dst, std::size_t blocks) {
  float levels[256];
  Normalized block;
  for (std::size_t b = 0; b < blocks; ++b) {
    std::memset(&dst[b], 0, sizeof dst[b]);
    normalize(src + b * 256, advance(importance, b), block);
    if (block.unit == 0) {
      std::memset(dst[b].qh, 0xaa, sizeof dst[b].qh);  // level 32 everywhere stands for zero
      continue;
    }
    const SymmetricBlock found = search_symmetric_block(block.x, block.w, block.unit, levels);
    dst[b].d = store_f16(found.d * block.unit);
    for (int g = 0; g < kGroups6; ++g) dst[b].scales[g] = static_cast<std::int8_t>(found.scale[g]);
    for (int i = 0; i < 256; ++i) {
      const int q = static_cast<int>(levels[i]) + 32;
      const int half = i / 128, slice = i % 128 / 32, l = i % 32;
      std::uint8_t& low = dst[b].ql[half * 64 + slice % 2 * 32 + l];
      std::uint8_t& high = dst[b].qh[half * 32 + l];
      low = static_cast<std::uint8_t>(low | (q & 15) << (slice / 2 * 4));
      high = static_cast<std::uint8_t>(high | (q >> 4) << (slice * 2));
    }
  }
}

}  // namespace heirloom::quant
