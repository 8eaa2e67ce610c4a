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
// Sums run over eight fixed lanes: the compiler vectorises that without being allowed to reorder, so that the
// result is the same on every CPU.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "format/quant_families.h"

namespace heirloom::quant {
namespace {

constexpr int kLanes = 8;
constexpr float kSmallestHalf = 0x1p-24f;
constexpr float kLargestHalf = 65504.0f;
constexpr int kImproveRounds = 2;

float sum_lanes(const float lanes[kLanes]) {
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

// Nearest whole number of |v| < 2^22: adding 1.5 * 2^23 leaves no fraction bits. Ties go to even.
inline float nearest(float v) {
  return (v + 12582912.0f) - 12582912.0f;
}

// The nearest half to `value` that is not zero (for a positive value) and not infinite.
float to_half_scale(float value) {
  const float bounded = std::clamp(value, -kLargestHalf, kLargestHalf);
  const float half = f16_to_f32(f32_to_f16(bounded));
  if (half == 0 && value != 0) return std::copysign(kSmallestHalf, value);
  return half;
}

// Weighted moments of levels q against values x.
struct Moments {
  float w, q, qq, x, qx;
};

template <int N>
Moments moments(const float* x, const float* w, const float* q) {
  float sw[kLanes] = {}, sq[kLanes] = {}, sqq[kLanes] = {}, sx[kLanes] = {}, sqx[kLanes] = {};
  for (int i = 0; i < N; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const float wq = w[i + l] * q[i + l];
      sw[l] += w[i + l];
      sq[l] += wq;
      sqq[l] += wq * q[i + l];
      sx[l] += w[i + l] * x[i + l];
      sqx[l] += wq * x[i + l];
    }
  }
  return {sum_lanes(sw), sum_lanes(sq), sum_lanes(sqq), sum_lanes(sx), sum_lanes(sqx)};
}

// ---- Q4_K, Q5_K: groups of 32, x ~ scale q - min, scale and min not negative, q in 0..max_level ----

constexpr int kGroup = 32;
constexpr int kGroups = 8;

struct Affine {
  float scale = 0, min = 0;
  float gain = 0;  // reduction of the squared error against coding the group as zeros; larger is better
};

// Nearest levels for a scale that is not zero.
void affine_levels(const float* x, float inverse_scale, float min, float max_level, float* q) {
  for (int i = 0; i < kGroup; ++i) {
    q[i] = std::min(std::max(nearest((x[i] + min) * inverse_scale), 0.0f), max_level);
  }
}

// Least squares for fixed levels, with the minimum kept at zero where it would be negative.
Affine affine_fit(const Moments& s) {
  Affine fit;
  const float det = s.w * s.qq - s.q * s.q;
  if (det > 0) {
    fit.scale = (s.w * s.qx - s.q * s.x) / det;
    fit.min = (s.q * s.qx - s.qq * s.x) / det;
  }
  if (fit.min < 0 || det <= 0) {
    fit.min = 0;
    fit.scale = s.qq > 0 ? s.qx / s.qq : 0;
  }
  if (fit.scale <= 0) return {};
  fit.gain = fit.scale * s.qx - fit.min * s.x;
  return fit;
}

Affine search_affine(const float* x, const float* w, int max_level) {
  const auto [lowest, highest] = std::minmax_element(x, x + kGroup);
  const float low = std::min(*lowest, 0.0f);
  const float range = *highest - low;
  if (!(range > 0)) return {0, -low, 0};  // all zero, or all equal and negative
  float q[kGroup];
  Affine best;
  const auto top = static_cast<float>(max_level);
  // Spreads from one level narrower than the range (outermost values clipped) to one wider.
  for (int step = -8; step <= 8; ++step) {
    affine_levels(x, (top + 0.125f * static_cast<float>(step)) / range, -low, top, q);
    const Affine fit = affine_fit(moments<kGroup>(x, w, q));
    if (fit.gain > best.gain) best = fit;
  }
  for (int round = 0; round < 4 && best.scale > 0; ++round) {
    affine_levels(x, 1 / best.scale, best.min, top, q);
    const Affine fit = affine_fit(moments<kGroup>(x, w, q));
    if (!(fit.gain > best.gain)) break;
    best = fit;
  }
  return best;
}

float affine_error(const float* x, const float* w, float scale, float min, float max_level) {
  float lanes[kLanes] = {};
  const float inverse = scale > 0 ? 1 / scale : 0;
  for (int i = 0; i < kGroup; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const float q = std::min(std::max(nearest((x[i + l] + min) * inverse), 0.0f), max_level);
      const float error = scale * q - min - x[i + l];
      lanes[l] += w[i + l] * error * error;
    }
  }
  return sum_lanes(lanes);
}

struct AffineBlock {
  float d = 0, dmin = 0;  // representable as halves once scaled back
  int scale[kGroups] = {}, min[kGroups] = {};
  float error = 0;
};

// For given d and dmin the best integers near scale / d and min / dmin of each group.
void choose_integers(const float* x, const float* w, const Affine* targets, float max_level,
                     AffineBlock& block) {
  block.error = 0;
  for (int g = 0; g < kGroups; ++g) {
    const float* gx = x + g * kGroup;
    const float* gw = w + g * kGroup;
    const int scale =
        block.d > 0 ? static_cast<int>(nearest(std::min(targets[g].scale / block.d, 63.0f))) : 0;
    const int min =
        block.dmin > 0 ? static_cast<int>(nearest(std::min(targets[g].min / block.dmin, 63.0f))) : 0;
    float least = HUGE_VALF;
    for (int s = std::max(scale - 1, 0); s <= std::min(scale + 1, 63); ++s) {
      for (int m = std::max(min - 1, 0); m <= std::min(min + 1, 63); ++m) {
        const float error = affine_error(gx, gw, block.d * static_cast<float>(s),
                                         block.dmin * static_cast<float>(m), max_level);
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

void block_levels(const float* x, const AffineBlock& block, float max_level, float* q) {
  for (int g = 0; g < kGroups; ++g) {
    const float scale = block.d * static_cast<float>(block.scale[g]);
    const float min = block.dmin * static_cast<float>(block.min[g]);
    affine_levels(x + g * kGroup, scale > 0 ? 1 / scale : 0, min, max_level, q + g * kGroup);
  }
}

// Least squares for d and dmin over the whole super-block, x ~ d (sc q) - dmin m. False if the system is
// singular.
bool fit_block_scales(const float* x, const float* w, const float* q, AffineBlock& block) {
  double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;
  for (int g = 0; g < kGroups; ++g) {
    const Moments s = moments<kGroup>(x + g * kGroup, w + g * kGroup, q + g * kGroup);
    const double scale = block.scale[g];
    const double min = block.min[g];
    aa += scale * scale * static_cast<double>(s.qq);
    ab -= scale * min * static_cast<double>(s.q);
    bb += min * min * static_cast<double>(s.w);
    ax += scale * static_cast<double>(s.qx);
    bx -= min * static_cast<double>(s.x);
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

// `unit` is the factor that was divided out of x; d and dmin are kept such that d * unit is a half.
AffineBlock search_affine_block(const float* x, const float* w, int max_level, float unit, float* levels) {
  const auto top = static_cast<float>(max_level);
  const auto rounded = [unit](float value) { return to_half_scale(value * unit) / unit; };
  Affine targets[kGroups];
  float max_scale = 0, max_min = 0;
  for (int g = 0; g < kGroups; ++g) {
    targets[g] = search_affine(x + g * kGroup, w + g * kGroup, max_level);
    max_scale = std::max(max_scale, targets[g].scale);
    max_min = std::max(max_min, targets[g].min);
  }
  AffineBlock best;
  best.d = rounded(max_scale / 63);
  best.dmin = rounded(max_min / 63);
  choose_integers(x, w, targets, top, best);
  block_levels(x, best, top, levels);
  float q[256];
  std::memcpy(q, levels, sizeof q);
  AffineBlock trial = best;
  for (int round = 0; round < kImproveRounds; ++round) {
    if (!fit_block_scales(x, w, q, trial)) break;
    trial.d = rounded(trial.d);
    trial.dmin = rounded(trial.dmin);
    choose_integers(x, w, targets, top, trial);
    block_levels(x, trial, top, q);
    if (!(trial.error < best.error)) break;
    best = trial;
    std::memcpy(levels, q, sizeof q);
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

// ---- Q6_K: groups of 16, x ~ scale q, q in -32..31, scale of either sign ----

constexpr int kGroup6 = 16;
constexpr int kGroups6 = 16;

float symmetric_error(const float* x, const float* w, float scale) {
  float lanes[kLanes] = {};
  const float inverse = scale != 0 ? 1 / scale : 0;
  for (int i = 0; i < kGroup6; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const float q = std::min(std::max(nearest(x[i + l] * inverse), -32.0f), 31.0f);
      const float error = scale * q - x[i + l];
      lanes[l] += w[i + l] * error * error;
    }
  }
  return sum_lanes(lanes);
}

void symmetric_levels(const float* x, float scale, float* q) {
  const float inverse = scale != 0 ? 1 / scale : 0;
  for (int i = 0; i < kGroup6; ++i) q[i] = std::min(std::max(nearest(x[i] * inverse), -32.0f), 31.0f);
}

float search_symmetric(const float* x, const float* w) {
  float peak = 0;
  for (int i = 0; i < kGroup6; ++i) {
    if (std::fabs(x[i]) > std::fabs(peak)) peak = x[i];
  }
  if (peak == 0) return 0;
  float q[kGroup6];
  float best = 0, best_gain = 0;
  const auto try_scale = [&](float scale) {
    symmetric_levels(x, scale, q);
    const Moments s = moments<kGroup6>(x, w, q);
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
    try_scale(peak / (-32.0f + shift));
    try_scale(peak / (31.0f + shift));
  }
  for (int round = 0; round < 4; ++round) {
    if (!try_scale(best)) break;
  }
  return best;
}

struct SymmetricBlock {
  float d = 0;
  int scale[kGroups6] = {};
  float error = 0;
};

void choose_integers(const float* x, const float* w, const float* targets, SymmetricBlock& block) {
  block.error = 0;
  for (int g = 0; g < kGroups6; ++g) {
    const float ratio = block.d != 0 ? targets[g] / block.d : 0;
    const int scale = static_cast<int>(nearest(std::clamp(ratio, -128.0f, 127.0f)));
    float least = HUGE_VALF;
    for (int s = std::max(scale - 1, -128); s <= std::min(scale + 1, 127); ++s) {
      const float error = symmetric_error(x + g * kGroup6, w + g * kGroup6, block.d * static_cast<float>(s));
      if (error < least) {
        least = error;
        block.scale[g] = s;
      }
    }
    block.error += least;
  }
}

void block_levels(const float* x, const SymmetricBlock& block, float* q) {
  for (int g = 0; g < kGroups6; ++g) {
    symmetric_levels(x + g * kGroup6, block.d * static_cast<float>(block.scale[g]), q + g * kGroup6);
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
  block_levels(x, best, levels);
  float q[256];
  std::memcpy(q, levels, sizeof q);
  SymmetricBlock trial = best;
  for (int round = 0; round < kImproveRounds; ++round) {
    double qq = 0, qx = 0;
    for (int g = 0; g < kGroups6; ++g) {
      const Moments s = moments<kGroup6>(x + g * kGroup6, w + g * kGroup6, q + g * kGroup6);
      const double scale = trial.scale[g];
      qq += scale * scale * static_cast<double>(s.qq);
      qx += scale * static_cast<double>(s.qx);
    }
    if (!(qq > 0)) break;
    trial.d = rounded(static_cast<float>(qx / qq));
    choose_integers(x, w, targets, trial);
    block_levels(x, trial, q);
    if (!(trial.error < best.error)) break;
    best = trial;
    std::memcpy(levels, q, sizeof q);
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
  const AffineBlock found = search_affine_block(block.x, block.w, kMaxLevel, block.unit, levels);
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
