// GGUF files that quantize writes are read back: as exact as the type allows, and stage by stage at float32.
#include "tools/quantize.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>

#include "backend/cpu/cpu_backend.h"
#include "format/gguf.h"
#include "format/gguf_writer.h"
#include "support/golden.h"
#include "tools/verify.h"

namespace heirloom::tools {
namespace {

namespace fs = std::filesystem;

struct TemporaryFolder {
  fs::path path = fs::temp_directory_path() / ("heirloom-quantize-" + std::to_string(::getpid()) + "-" +
                                               ::testing::UnitTest::GetInstance()->current_test_info()->name());
  TemporaryFolder() { fs::create_directories(path); }
  ~TemporaryFolder() { fs::remove_all(path); }
};

bool verifies(const fs::path& model_path, const fs::path& mmproj, const fs::path& reference, double tolerance) {
  const model::ModelFiles files = model::open_model_files(model_path, mmproj);
  cpu::CpuBackend backend({.threads = 2});
  const auto model = model::bind_model(files, backend);
  return verify(files, *model, {reference, {}, tolerance}).ok();
}

class round_trip : public ::testing::TestWithParam<const char*> {};

TEST_P(round_trip, through_a_float32_gguf_keeps_every_stage) {
  const fs::path folder = test::golden(std::string("models/") + GetParam() + "/config.json");
  const fs::path dumps = test::golden(std::string("dumps/") + GetParam());
  HEIRLOOM_REQUIRE(folder);
  HEIRLOOM_REQUIRE(dumps);
  const TemporaryFolder temporary;
  const model::ModelFiles files = model::open_model_files(folder.parent_path());
  quantize(files, temporary.path / "one.gguf", {.type = DType::f32});
  EXPECT_TRUE(verifies(temporary.path / "one.gguf", {}, dumps, 3e-4));
  if (!files.config.vision.present) return;
  // The vision part in a file of its own, as llama.cpp's users have it.
  quantize(files, temporary.path / "text.gguf", {.type = DType::f32, .vision_output = temporary.path / "mmproj.gguf"});
  EXPECT_TRUE(verifies(temporary.path / "text.gguf", temporary.path / "mmproj.gguf", dumps, 3e-4));
  // And once more from GGUF to GGUF.
  quantize(model::open_model_files(temporary.path / "text.gguf", temporary.path / "mmproj.gguf"), temporary.path / "again.gguf",
           {.type = DType::f32});
  EXPECT_TRUE(verifies(temporary.path / "again.gguf", {}, dumps, 3e-4));
}

INSTANTIATE_TEST_SUITE_P(kit, round_trip, ::testing::Values("dense_b", "moe_a", "moe_b", "mini_b"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST(quantize, falls_back_as_llama_cpp_does_where_a_block_does_not_divide_a_row) {
  const fs::path folder = test::golden("models/mini_b/config.json");
  HEIRLOOM_REQUIRE(folder);
  const TemporaryFolder temporary;
  const QuantizeReport report =
      quantize(model::open_model_files(folder.parent_path()), temporary.path / "k.gguf", {.type = DType::q4_k});
  const GgufFile file(temporary.path / "k.gguf");
  EXPECT_EQ(file.type_name("blk.0.ffn_down.weight"), "Q5_0");
  EXPECT_EQ(file.type_name("token_embd.weight"), "Q8_0");  // tied head: q6_k beside 4-bit types
  EXPECT_EQ(file.type_name("blk.0.attn_norm.weight"), "F32");
  bool told = false;
  for (const std::string& note : report.notes) told |= note.find("q4_k -> q5_0") != std::string::npos;
  EXPECT_TRUE(told);
}

// A GGUF whose value heads are stored in a checkpoint's (grouped) order: the first Gated DeltaNet layer must be named.
TEST(quantize, a_wrong_order_of_value_heads_is_found_at_the_first_gdn_layer) {
  const fs::path folder = test::golden("models/dense_b/config.json");
  const fs::path dump = test::golden("dumps/dense_b/stage_p65.safetensors");
  HEIRLOOM_REQUIRE(folder);
  HEIRLOOM_REQUIRE(dump);
  const TemporaryFolder temporary;
  model::ModelFiles files = model::open_model_files(folder.parent_path());
  quantize(files, temporary.path / "right.gguf", {.type = DType::f32});
  {
    // The same weights in grouped order: copy the file tensor by tensor, value-head rows put back.
    const GgufFile right(temporary.path / "right.gguf");
    GgufWriter writer(temporary.path / "grouped.gguf");
    for (const GgufEntry& entry : right.metadata().entries()) writer.copy(entry);
    const model::TextConfig& text = files.config.text;
    for (const std::string& name : right.names()) {
      const TensorView& view = *right.find(name);
      writer.add_tensor({name, view.type, view.shape});
    }
    for (const TensorSpec& spec : std::vector<TensorSpec>(writer.begin())) {
      const TensorView& view = *right.find(spec.name);
      std::vector<std::byte> bytes(view.data.begin(), view.data.end());
      if (spec.name.find("attn_gate.weight") != std::string::npos) {
        const std::size_t head = bytes.size() / static_cast<std::size_t>(text.linear_num_v_heads);
        const int nk = text.linear_num_k_heads, ratio = text.linear_num_v_heads / nk;
        for (int j = 0; j < nk; ++j) {
          for (int i = 0; i < ratio; ++i) {
            std::copy_n(view.data.begin() + static_cast<std::ptrdiff_t>(head) * (i * nk + j), head,
                        bytes.begin() + static_cast<std::ptrdiff_t>(head) * (j * ratio + i));
          }
        }
      }
      writer.write(bytes);
    }
    writer.finish();
  }
  const model::ModelFiles grouped = model::open_model_files(temporary.path / "grouped.gguf");
  cpu::CpuBackend backend({.threads = 2});
  const auto model = model::bind_model(grouped, backend);
  const VerifyReport report = verify(grouped, *model, {dump, {}, 1e-3});
  EXPECT_FALSE(report.ok());
  bool named = false;
  for (const StageResult& stage : report.stages) named |= !stage.ok && stage.name.starts_with("lm.layer0.gdn.");
  EXPECT_TRUE(named);
}

}  // namespace
}  // namespace heirloom::tools
