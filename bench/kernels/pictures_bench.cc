// Preprocessing of one decoded picture on one core: resize, patches and hash, per processor and size.
//
//   bench_pictures [REPEAT]       (default 9; the first, which also touches new memory, is told apart)
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <vector>

#include "image/processor.h"

namespace {

using namespace heirloom;

Image noise(std::uint32_t width, std::uint32_t height) {
  Image image{width, height, std::vector<std::uint8_t>(std::size_t{width} * height * 3), {}};
  std::mt19937 engine(1);
  for (std::uint8_t& value : image.rgb) value = static_cast<std::uint8_t>(engine());
  return image;
}

}  // namespace

int main(int argc, char** argv) {
  const int repeat = std::max(argc > 1 ? std::atoi(argv[1]) : 9, 1);
  for (const char* settings : {R"({"image_processor_type": "MiniCPMV4_6ImageProcessor"})",
                               R"({"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 16,
            "size": {"shortest_edge": 65536, "longest_edge": 1048576}})"}) {
    const ImageProcessorConfig config = ImageProcessorConfig::from_json(settings, "bench_pictures");
    for (const auto& [width, height] :
         {std::pair{448u, 448u}, {896u, 672u}, {1344u, 1344u}, {3000u, 2000u}}) {
      const Image image = noise(width, height);
      std::vector<double> ms;
      std::size_t patches = 0;
      for (int i = 0; i < repeat; ++i) {
        const auto start = std::chrono::steady_clock::now();
        patches = process_image(image, config).patches();
        ms.push_back(
            std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
      }
      const double first = ms.front();
      std::sort(ms.begin(), ms.end());
      fmt::print("{:8} {:4}x{:<4} {:5} patches  {:6.2f} ms ({:.2f}-{:.2f}), first {:.2f}\n",
                 config.kind == ImageProcessorKind::qwen ? "qwen" : "minicpmv", width, height, patches,
                 ms[ms.size() / 2], ms.front(), ms.back(), first);
    }
  }
}
