// GGUF files whose metadata and tensors contradict each other: refused in one sentence that shows both numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "backend/cpu/cpu_backend.h"
#include "format/gguf_writer.h"
#include "model/model_files.h"
#include "tools/verify.h"

namespace heirloom::model {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

/// The bundled MoE model with changed keys or a changed tensor, opened and bound; the message it was refused with.
class HostileFile {
 public:
  std::function<void(GgufWriter&)> keys = [](GgufWriter&) {};
  std::function<bool(TensorSpec&)> tensor = [](TensorSpec&) { return true; };  // may change the shape; false drops it

  std::string refusal() const {
    const fs::path path = fs::temp_directory_path() / ("heirloom-hostile-" + std::to_string(::getpid()) + ".gguf");
    write(path);
    std::string message = "(accepted)";
    try {
      const ModelFiles files = open_model_files(path);
      cpu::CpuBackend backend({.threads = 1});
      bind_model(files, backend);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_file);
      message = error.what();
    }
    fs::remove(path);
    return message;
  }

 private:
  void write(const fs::path& path) const {
    const GgufFile source(fs::path(HEIRLOOM_SOURCE_DIR) / "models" / "demo-moe.gguf");
    GgufWriter writer(path);
    for (const GgufEntry& entry : source.metadata().entries()) writer.copy(entry);
    keys(writer);
    for (const std::string& name : source.names()) {
      TensorSpec spec{name, source.find(name)->type, source.find(name)->shape};
      if (tensor(spec)) writer.add_tensor(std::move(spec));
    }
    for (const TensorSpec& spec : std::vector<TensorSpec>(writer.begin())) {
      std::uint64_t rows = 1;
      for (std::size_t i = 0; i + 1 < spec.shape.size(); ++i) rows *= spec.shape[i];
      std::vector<std::byte> bytes(rows * row_bytes(spec.type, spec.shape.back()));
      writer.write(bytes);
    }
    writer.finish();
  }
};

HostileFile with_count(const std::string& key, std::uint32_t value) {
  HostileFile file;
  file.keys = [=](GgufWriter& writer) { writer.set("qwen35moe." + key, value); };
  return file;
}

TEST(hostile_gguf, a_layer_count_beyond_the_tensors_is_refused) {
  EXPECT_THAT(with_count("block_count", 100000).refusal(), AllOf(HasSubstr("block_count"), HasSubstr("100000")));
  EXPECT_THAT(with_count("block_count", 0).refusal(), HasSubstr("block_count"));
  // A few more than there are: the first missing tensor is named. The list of layer kinds must not be read past its end.
  EXPECT_THAT(with_count("block_count", 9).refusal(), HasSubstr("recurrent_layers has 8"));
  HostileFile file = with_count("block_count", 9);
  const auto more = file.keys;
  file.keys = [more](GgufWriter& writer) {
    more(writer);
    writer.erase("qwen35moe.attention.recurrent_layers");
  };
  EXPECT_THAT(file.refusal(), HasSubstr("blk.8."));
}

TEST(hostile_gguf, expert_counts_that_disagree_show_both_numbers) {
  HostileFile file;
  file.tensor = [](TensorSpec& spec) {
    if (spec.name.find("_exps.") != std::string::npos) spec.shape[0] = 24;
    return true;
  };
  EXPECT_THAT(file.refusal(), AllOf(HasSubstr("[24, "), HasSubstr("[32, ")));
  HostileFile few = with_count("expert_count", 3);
  EXPECT_THAT(few.refusal(), AllOf(HasSubstr("4 experts are used"), HasSubstr("has 3")));
}

TEST(hostile_gguf, sizes_that_disagree_with_the_tensors_are_refused) {
  for (const char* key : {"embedding_length", "attention.head_count", "attention.head_count_kv", "attention.key_length",
                          "expert_feed_forward_length", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size"}) {
    for (const std::uint32_t value : {0u, 1u, 6u, 1000003u, 0xffffffffu}) {
      EXPECT_NE(with_count(key, value).refusal(), "(accepted)") << key << " = " << value;
    }
  }
}

TEST(hostile_gguf, a_missing_tensor_is_named) {
  for (const char* name : {"output_norm.weight", "blk.3.attn_q.weight", "blk.0.ssm_a", "v.blk.1.ln2.bias", "mm.2.weight"}) {
    HostileFile file;
    file.tensor = [name](TensorSpec& spec) { return spec.name != name; };
    EXPECT_THAT(file.refusal(), HasSubstr(name));
  }
}

TEST(hostile_gguf, an_unknown_order_of_value_heads_is_refused) {
  HostileFile file;
  file.keys = [](GgufWriter& writer) { writer.set("qwen35moe.ssm.value_head_layout", std::string_view("spiral")); };
  EXPECT_THAT(file.refusal(), AllOf(HasSubstr("spiral"), HasSubstr("tiled")));
}

TEST(hostile_gguf, an_architecture_or_projector_of_another_model_is_named) {
  HostileFile architecture;
  architecture.keys = [](GgufWriter& writer) { writer.set("general.architecture", std::string_view("mamba2")); };
  EXPECT_THAT(architecture.refusal(), AllOf(HasSubstr("mamba2"), HasSubstr("qwen35")));
  HostileFile projector;
  projector.keys = [](GgufWriter& writer) { writer.set("clip.projector_type", std::string_view("pixtral")); };
  EXPECT_THAT(projector.refusal(), HasSubstr("pixtral"));
}

TEST(hostile_gguf, a_vision_part_given_as_a_model_says_what_it_is) {
  HostileFile file;
  file.keys = [](GgufWriter& writer) { writer.set("general.architecture", std::string_view("clip")); };
  EXPECT_THAT(file.refusal(), HasSubstr("--mmproj"));
}

}  // namespace
}  // namespace heirloom::model
