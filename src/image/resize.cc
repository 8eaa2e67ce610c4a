#include "image/resize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/check.h"

namespace heirloom {
namespace {

// Weights of one output position are padded with zeros to a multiple of this, so that the horizontal dot
// products run in whole vectors (SSE2's pmaddwd takes eight).
constexpr std::size_t kTapsStep = 8;

// Bytes of a row that the vertical pass sums at a time: the sums stay in the first-level cache.
constexpr std::size_t kStrip = 2048;

double filter_value(ResizeFilter filter, double x) {
  x = std::abs(x);
  if (filter == ResizeFilter::bilinear) return x < 1.0 ? 1.0 - x : 0.0;
  constexpr double kA = -0.5;
  if (x < 1.0) return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1.0;
  if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * kA;
  return 0.0;
}

/// Fixed-point weights of one axis.
struct AxisWeights {
  std::size_t taps = 0;              // per output position, a multiple of kTapsStep
  std::vector<std::size_t> first;    // [out] first input position
  std::vector<std::int16_t> weight;  // [out, taps]
  int precision = 0;                 // fraction bits

  std::uint8_t round(std::int32_t sum) const {
    return static_cast<std::uint8_t>(std::clamp((sum + (1 << (precision - 1))) >> precision, 0, 255));
  }
};

AxisWeights axis_weights(std::uint32_t in, std::uint32_t out, ResizeFilter filter) {
  const double scale = static_cast<double>(in) / out;
  const double reduction = std::max(scale, 1.0);
  const double support = (filter == ResizeFilter::bicubic ? 2.0 : 1.0) * reduction;
  const auto most = static_cast<std::size_t>(std::ceil(support)) * 2 + 1;
  AxisWeights axis;
  axis.taps = (most + kTapsStep - 1) / kTapsStep * kTapsStep;
  axis.first.resize(out);
  axis.weight.resize(out * axis.taps);
  std::vector<double> exact(out * axis.taps);
  double largest = 0.0;
  for (std::size_t o = 0; o < out; ++o) {
    const double centre = (static_cast<double>(o) + 0.5) * scale;
    const auto low = static_cast<std::int64_t>(std::max(centre - support + 0.5, 0.0));
    const auto high = std::min<std::int64_t>(static_cast<std::int64_t>(centre + support + 0.5), in);
    axis.first[o] = static_cast<std::size_t>(low);
    double* values = &exact[o * axis.taps];
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
  for (std::size_t i = 0; i < exact.size(); ++i) {
    axis.weight[i] = static_cast<std::int16_t>(exact[i] * one + (exact[i] < 0.0 ? -0.5 : 0.5));
  }
  return axis;
}

std::int32_t dot(const std::int16_t* a, const std::int16_t* b, std::size_t count) {
  std::int32_t sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += std::int32_t{a[i]} * b[i];
  return sum;
}

/// Written with 16-bit operands on purpose: SSE2 multiplies those, not 32-bit ones.
void add_scaled(const std::uint8_t* from, std::int16_t factor, std::int32_t* sums, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    sums[i] += std::int32_t{factor} * static_cast<std::int16_t>(from[i]);
}

Image resize_width(const Image& source, std::uint32_t width, ResizeFilter filter) {
  const AxisWeights axis = axis_weights(source.width, width, filter);
  Image result;
  result.width = width;
  result.height = source.height;
  result.rgb.resize(std::size_t{width} * source.height * 3);
  // A row as three planes of 16-bit values; the zero padding meets only zero weights.
  const std::size_t plane = source.width + axis.taps;
  std::vector<std::int16_t> planes(plane * 3);
  for (std::size_t y = 0; y < source.height; ++y) {
    const std::uint8_t* from = &source.rgb[y * source.width * 3];
    for (std::size_t x = 0; x < source.width; ++x) {
      for (std::size_t c = 0; c < 3; ++c) planes[c * plane + x] = from[3 * x + c];
    }
    std::uint8_t* to = &result.rgb[y * width * 3];
    for (std::size_t x = 0; x < width; ++x) {
      const std::int16_t* weight = &axis.weight[x * axis.taps];
      for (std::size_t c = 0; c < 3; ++c) {
        to[3 * x + c] = axis.round(dot(&planes[c * plane + axis.first[x]], weight, axis.taps));
      }
    }
  }
  return result;
}

Image resize_height(const Image& source, std::uint32_t height, ResizeFilter filter) {
  const AxisWeights axis = axis_weights(source.height, height, filter);
  Image result;
  result.width = source.width;
  result.height = height;
  const std::size_t row = std::size_t{source.width} * 3;
  result.rgb.resize(row * height);
  std::array<std::int32_t, kStrip> sums;
  for (std::size_t y = 0; y < height; ++y) {
    const std::int16_t* weight = &axis.weight[y * axis.taps];
    const std::size_t rows = std::min<std::size_t>(axis.taps, source.height - axis.first[y]);
    for (std::size_t start = 0; start < row; start += kStrip) {
      const std::size_t count = std::min(kStrip, row - start);
      sums.fill(0);
      for (std::size_t k = 0; k < rows; ++k) {
        const std::int16_t factor = weight[k];
        if (factor == 0) continue;
        add_scaled(&source.rgb[(axis.first[y] + k) * row + start], factor, sums.data(), count);
      }
      std::uint8_t* to = &result.rgb[y * row + start];
      for (std::size_t x = 0; x < count; ++x) to[x] = axis.round(sums[x]);
    }
  }
  return result;
}

}  // namespace

Image resize(const Image& source, std::uint32_t width, std::uint32_t height, ResizeFilter filter) {
  HEIRLOOM_CHECK(source.width > 0 && source.height > 0 && width > 0 && height > 0);
  if (width == source.width && height == source.height) {
    return {width, height, source.rgb, std::nullopt};
  }
  if (width == source.width) return resize_height(source, height, filter);
  Image narrow = resize_width(source, width, filter);
  return height == source.height ? std::move(narrow) : resize_height(narrow, height, filter);
}

}  // namespace heirloom
