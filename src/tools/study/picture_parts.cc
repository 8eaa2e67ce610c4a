// Parts of the study that look at a picture.
#include <cmath>
#include <random>
#include <span>

#include "base/check.h"
#include "image/processor.h"
#include "model/vision_tower.h"
#include "tools/sequence.h"
#include "tools/study/study_bench.h"
#include "tools/study/study_picture.h"
#include "tools/study/synthetic_model.h"

namespace heirloom::tools {
namespace {

/// The GPU with vision attention as written down: each row of each head alone, keys and values read again for every one.
class NaiveAttentionGpu final : public cuda::CudaBackend {
 public:
  using CudaBackend::CudaBackend;
  void segment_attention(ops::Matrix q, ops::Matrix k, ops::Matrix v, int num_heads, std::span<const std::int32_t> segments,
                         const float* rope_cos, const float* rope_sin, ops::Matrix out) override {
    HEIRLOOM_CHECK(rope_cos == nullptr && rope_sin == nullptr);
    copy(out.data, out.data, 0);  // what waits to be fused is launched first
    const int width = static_cast<int>(q.cols), head_dim = width / num_heads;
    for (std::size_t s = 0; s + 1 < segments.size(); ++s) {
      const int rows = segments[s + 1] - segments[s];
      const std::int64_t at = static_cast<std::int64_t>(segments[s]) * width;
      device().launch("attention_naive", {static_cast<unsigned>(rows), static_cast<unsigned>(num_heads)}, {128}, static_cast<std::size_t>(rows) * 4,
                      out.data + at, static_cast<const float*>(q.data + at), static_cast<const float*>(k.data + at),
                      static_cast<const float*>(v.data + at), rows, width, width, head_dim, 1, 0, 1.0f / std::sqrt(static_cast<float>(head_dim)));
    }
  }
};

struct Picture {
  const char* name;
  std::uint32_t width, height;
};
// One tile, five, and ten, the most that the model's processor makes.
constexpr Picture kPictures[] = {{"448x448", 448, 448}, {"896x672", 896, 672}, {"1344x1344", 1344, 1344}};

Image random_image(std::uint32_t width, std::uint32_t height) {
  Image image;
  image.width = width;
  image.height = height;
  image.rgb.resize(std::size_t{3} * width * height);
  std::mt19937 engine(3);
  for (std::uint8_t& value : image.rgb) value = static_cast<std::uint8_t>(engine());
  return image;
}

model::VisionInput vision_input(const Image& image) {
  ImageProcessorConfig config;
  config.kind = ImageProcessorKind::minicpmv;
  config.patch_size = 14;
  config.temporal_patch_size = 1;
  ProcessedImage processed = process_image(image, config);
  model::VisionInput input;
  input.pixels = std::move(processed.pixels_u8);
  input.values = normalize_table(config);
  for (const ImageTile& tile : processed.tiles) input.grids.push_back({1, static_cast<int>(tile.grid_h), static_cast<int>(tile.grid_w)});
  return input;
}

std::size_t patches_of(const model::VisionInput& picture) {
  std::size_t patches = 0;
  for (const auto& grid : picture.grids) patches += static_cast<std::size_t>(grid.h * grid.w);
  return patches;
}

std::string named(const char* where, const Picture& picture, const model::VisionInput& input) {
  return fmt::format("{}, {} ({} patches in {} tile{})", where, picture.name, patches_of(input), input.grids.size(),
                     input.grids.size() == 1 ? "" : "s");
}

void features_on(StudyBench& bench, ops::Backend& backend, const char* where, const Picture& picture) {
  SyntheticOptions options;
  options.size = SyntheticSize::vision;
  const model::ModelFiles files = synthetic_model(options);
  const model::WeightReader reader(files.naming, files.config, files.text, files.vision);
  const auto tower = model::make_minicpm_vision_tower(backend, files.config.vision, reader);
  const model::VisionInput input = study_picture(picture.width, picture.height);
  bench.add(named(where, picture, input), bench.time(backend, [&] { tower->encode(input, nullptr); }));
}

void question_on(StudyBench& bench, ops::Backend& backend, const char* where) {
  constexpr int kText = 32;
  SyntheticOptions options;
  options.size = SyntheticSize::vision;
  const auto model = bind_synthetic(options, backend);
  for (const Picture& picture : std::span(kPictures).first(2)) {  // the third takes a CPU half a minute
    bench.begin_group();
    std::int64_t rows = 0;
    Sequence sequence(*model, DType::f16);
    sequence.reserve(1024);
    const Image image = random_image(picture.width, picture.height);
    const StudyFigure figure = bench.time(backend, [&] {
      const model::VisionInput input = vision_input(image);
      const model::VisionOutput seen = model->encode_image(input);
      rows = seen.tokens + kText;
      sequence.clear();
      const std::vector<std::int32_t> ids(static_cast<std::size_t>(rows), 1);
      sequence.feed_greedy(ids, {{8, static_cast<std::int32_t>(seen.tokens), seen.features.f32()}});
    });
    auto* gpu = dynamic_cast<cuda::CudaBackend*>(&backend);
    bench.add(named(where, picture, vision_input(image)), figure,
              fmt::format("prompt of {} rows{}", rows,
                          gpu ? fmt::format("; {} MiB of GPU memory at most", gpu->device().peak_bytes() >> 20) : ""));
  }
}

}  // namespace

model::VisionInput study_picture(std::uint32_t width, std::uint32_t height) { return vision_input(random_image(width, height)); }

double tower_flops(const model::VisionConfig& config, const model::VisionInput& picture) {
  const double hidden = config.hidden_size, inner = config.intermediate_size, stacked = 4 * hidden;
  const double block = 4 * hidden * hidden + 2 * hidden * inner;  // multiplications of a row
  const auto patches = static_cast<double>(patches_of(picture)), merged = patches / 4, tokens = merged / 4;
  const double before = config.insert_layer_id + 1, after = config.depth - before;
  double products = patches * 3 * config.patch_size * config.patch_size * hidden + block * (patches * before + merged * after);
  products += patches * 4 * hidden * hidden + merged * (stacked * 4 * inner + 4 * inner * hidden);  // window merger
  products += tokens * (stacked * stacked + stacked * config.out_hidden_size);                      // projector
  return 2 * products;
}

void study_image(StudyBench& bench) {
  if (!bench.skipped_without_gpu("tower on the GPU")) {
    for (const Picture& picture : kPictures) {
      bench.begin_group();
      features_on(bench, *bench.open_gpu<NaiveAttentionGpu>(), "GPU, naive attention", picture);
      features_on(bench, *bench.open_gpu(), "GPU, attention as one kernel", picture);
    }
  }
  bench.begin_group();
  features_on(bench, *bench.open_cpu(), "CPU", kPictures[0]);
}

void study_question(StudyBench& bench) {
  if (!bench.skipped_without_gpu("question about a picture on the GPU")) question_on(bench, *bench.open_gpu(), "GPU");
  if (!bench.has_gpu()) question_on(bench, *bench.open_cpu(), "CPU");
}

}  // namespace heirloom::tools
