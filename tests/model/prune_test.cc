// Expert pruning: scores against the reference implementation's, and files whose kept experts are the source's, byte by byte.
#include "tools/prune.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "engine/text_side.h"
#include "format/gguf.h"
#include "format/quant_blocks.h"
#include "model/layer_stream.h"
#include "support/golden.h"
#include "support/temp_file.h"
#include "tools/saliency.h"
#include "tools/sequence.h"

namespace heirloom::tools {
namespace {

namespace fs = std::filesystem;

const fs::path kDemo = fs::path(HEIRLOOM_SOURCE_DIR) / "models" / "demo-moe.gguf";

OrderedJson golden_scores() {
  const fs::path path = test::golden("prune/saliency.json");
  return parse_json(read_text_file(path), path.string());
}

Request tokens(std::vector<std::int32_t> ids) {
  Request request;
  request.token_ids = std::move(ids);
  return request;
}

std::vector<Request> golden_sequences(const OrderedJson& golden) {
  std::vector<Request> requests;
  for (const OrderedJson& ids : golden["sequences"]) requests.push_back(tokens(ids.get<std::vector<std::int32_t>>()));
  return requests;
}

void expect_scores(const Calibration& ours, const OrderedJson& reference, double tolerance) {
  ASSERT_EQ(ours.layers.size(), reference["score"].size());
  for (std::size_t l = 0; l < ours.layers.size(); ++l) {
    EXPECT_EQ(ours.layers[l].tokens, reference["tokens"][l].get<std::vector<std::int64_t>>()) << "layer " << l;
    for (std::size_t e = 0; e < ours.layers[l].score.size(); ++e) {
      const double expected = reference["score"][l][e].get<double>();
      EXPECT_NEAR(ours.layers[l].score[e], expected, tolerance * expected) << "layer " << l << " expert " << e;
    }
  }
}

TEST(saliency, of_a_float16_file_is_the_reference_implementations) {
  const fs::path model = test::golden("gguf/moe_a-f16.gguf");
  HEIRLOOM_REQUIRE(model);
  cpu::CpuBackend backend({.threads = 2});
  const OrderedJson golden = golden_scores();
  expect_scores(calibrate(model::open_model_files(model), backend, golden_sequences(golden), {}), golden["f16"], 1e-4);
}

TEST(saliency, of_a_checkpoint_is_the_reference_implementations_with_and_without_pictures) {
  const fs::path config = test::golden("models/moe_a/config.json");
  HEIRLOOM_REQUIRE(config);
  cpu::CpuBackend backend({.threads = 2});
  const model::ModelFiles files = model::open_model_files(config.parent_path());
  const OrderedJson golden = golden_scores();
  expect_scores(calibrate(files, backend, golden_sequences(golden), {}), golden["f32"], 1e-4);

  const fs::path picture = test::golden("images/" + golden["picture"]["file"].get<std::string>());
  HEIRLOOM_REQUIRE(picture);
  Request request;
  request.raw_text = golden["picture"]["prompt"].get<std::string>();
  const std::string bytes = read_text_file(picture);
  request.images.emplace_back();
  request.images.back().bytes.resize(bytes.size());
  std::memcpy(request.images.back().bytes.data(), bytes.data(), bytes.size());
  const Calibration calibration = calibrate(files, backend, {request}, {});
  EXPECT_EQ(calibration.pictures, 1);
  EXPECT_EQ(calibration.tokens, golden["picture"]["input_tokens"].get<std::int64_t>());
  expect_scores(calibration, golden["picture"], 1e-3);
}

/// What a whole model's own forward pass says of the same prompts: the pass layer by layer must not change a bit.
class WholePassTaps : public model::Taps {
 public:
  bool wants(std::string_view name) const override { return name.ends_with(".ffn.expert_out_norm"); }
  void floats(std::string_view, std::span<const std::int64_t>, std::span<const float> values) override {
    norms.insert(norms.end(), values.begin(), values.end());
  }
  void ints(std::string_view, std::span<const std::int64_t>, std::span<const std::int32_t>) override {}
  std::vector<float> norms;
};

TEST(layer_stream, gives_the_bits_of_a_whole_forward_pass) {
  cpu::CpuBackend backend({.threads = 2});
  const model::ModelFiles files = model::open_model_files(kDemo);
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < 70; ++i) ids.push_back(100 + i * 13);
  WholePassTaps whole;
  const auto model = model::bind_model(files, backend);
  Sequence(*model).feed(ids, text_positions(0, 70), {}, {69}, &whole);
  WholePassTaps streamed;
  const model::StreamedSequence sequence{ids, text_positions(0, 70), {}};
  model::stream_layers(files, backend, {&sequence, 1}, streamed, {});
  EXPECT_FALSE(whole.norms.empty());
  EXPECT_EQ(streamed.norms, whole.norms);
}

TEST(prune, keeps_the_best_experts_ties_to_the_lower_index) {
  EXPECT_EQ(best_experts({{1, 5, 5, 0, 5}, {0, 0, 0, 0, 1}}, 2), (model::ExpertSelection{{1, 2}, {0, 4}}));
}

/// Options that need no calibration: what is written does not depend on how experts were chosen.
PruneOptions at_random(double keep) { return {.keep = keep, .method = PruneMethod::random, .seed = 3}; }

TEST(prune, keeps_bytes_of_a_quantised_file_and_says_so_in_its_keys) {
  const test::TempFolder folder;
  cpu::CpuBackend backend({.threads = 2});
  const model::ModelFiles files = model::open_model_files(kDemo);
  const PruneReport report = prune(files, backend, folder.path() / "half.gguf", at_random(0.5));
  const GgufFile source(kDemo), half(folder.path() / "half.gguf");
  EXPECT_EQ(half.metadata().find_u64("qwen35moe.expert_count"), 16u);
  EXPECT_EQ(half.metadata().find_u64("general.file_type"), source.metadata().find_u64("general.file_type"));
  EXPECT_EQ(half.names(), source.names());
  std::size_t reduced = 0;
  for (const std::string& name : source.names()) {
    const TensorView &from = source.require(name), &to = half.require(name);
    ASSERT_EQ(to.type, from.type) << name;
    const bool experts = name.find("_exps.") != std::string::npos || name.ends_with("ffn_gate_inp.weight");
    if (!experts) {
      ASSERT_EQ(to.shape, from.shape) << name;
      ASSERT_TRUE(std::ranges::equal(to.data, from.data)) << name;
      continue;
    }
    ++reduced;
    ASSERT_EQ(to.shape.front(), 16u) << name;
    const std::size_t slice = from.data.size() / 32;
    const auto& kept = report.layers.at(static_cast<std::size_t>(std::stoi(name.substr(4)))).kept;
    for (std::size_t i = 0; i < kept.size(); ++i) {
      ASSERT_EQ(std::memcmp(to.data.data() + i * slice, from.data.data() + static_cast<std::size_t>(kept[i]) * slice, slice), 0) << name;
    }
  }
  EXPECT_EQ(reduced, 8u * 4u);
}

TEST(prune, of_everything_kept_is_the_source) {
  const test::TempFolder folder;
  cpu::CpuBackend backend({.threads = 2});
  prune(model::open_model_files(kDemo), backend, folder.path() / "all.gguf", at_random(1));
  const GgufFile source(kDemo), all(folder.path() / "all.gguf");
  for (const std::string& name : source.names()) {
    ASSERT_TRUE(std::ranges::equal(all.require(name).data, source.require(name).data)) << name;
  }
}

TEST(prune, makes_a_folder_of_a_folder) {
  const fs::path config = test::golden("models/moe_a/config.json");
  HEIRLOOM_REQUIRE(config);
  const test::TempFolder folder;
  cpu::CpuBackend backend({.threads = 2});
  const model::ModelFiles files = model::open_model_files(config.parent_path());
  const PruneReport report = prune(files, backend, folder.path() / "pruned", at_random(0.5));
  EXPECT_EQ(report.kept, 5);  // of 9, rounded
  const model::ModelFiles pruned = model::open_model_files(folder.path() / "pruned");
  EXPECT_EQ(pruned.config.text.num_experts, 5);
  // The folder and a GGUF pruned the same way give the same logits (a GGUF's order of value heads sums in another order).
  prune(files, backend, folder.path() / "pruned.gguf", at_random(0.5));
  std::vector<std::vector<float>> logits;
  for (const char* name : {"pruned", "pruned.gguf"}) {
    const auto model = model::bind_model(model::open_model_files(folder.path() / name), backend);
    const std::vector<std::int32_t> ids{5, 9, 200, 31, 7};
    logits.push_back(Sequence(*model).feed(ids, text_positions(0, 5), {}, {4}));
  }
  for (std::size_t i = 0; i < logits[0].size(); ++i) ASSERT_NEAR(logits[0][i], logits[1][i], 1e-4);
  // Experts of the pruned folder are the source's.
  for (const std::string& name : files.text->names()) {
    if (name.find("layers.1.mlp.gate.weight") == std::string::npos) continue;
    const TensorView &from = files.text->require(name), &to = pruned.text->require(name);
    const std::size_t slice = from.data.size() / 9;
    for (std::size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(std::memcmp(to.data.data() + i * slice, from.data.data() + static_cast<std::size_t>(report.layers[1].kept[i]) * slice, slice), 0);
    }
  }
}

std::vector<float> as_floats(const TensorView& view) {
  std::vector<float> values(view.elements());
  dequantize_row(view.type, view.data.data(), values.data(), values.size());
  return values;
}

std::vector<float> last_logits(const fs::path& path, ops::Backend& backend) {
  const auto model = model::bind_model(model::open_model_files(path), backend);
  return Sequence(*model).feed(std::vector<std::int32_t>{5, 9, 200, 31, 7}, text_positions(0, 5), {}, {4});
}

// The reference implementation's checkpoint, through a GGUF file and back: its value heads are grouped again, norms lose their
// one, A is a logarithm.
TEST(prune, makes_of_a_gguf_file_the_folder_that_the_file_was_made_of) {
  const fs::path config = test::golden("models/moe_a/config.json");
  HEIRLOOM_REQUIRE(config);
  const test::TempFolder folder;
  cpu::CpuBackend backend({.threads = 2});
  const model::ModelFiles files = model::open_model_files(config.parent_path());
  ASSERT_NE(files.config.text.linear_num_v_heads, files.config.text.linear_num_k_heads);
  prune(files, backend, folder.path() / "all.gguf", at_random(1));
  prune(model::open_model_files(folder.path() / "all.gguf"), backend, folder.path() / "back", at_random(1));
  const model::ModelFiles back = model::open_model_files(folder.path() / "back");
  std::size_t same = 0;
  for (const std::string& name : files.text->names()) {
    if (name.find(".experts.") != std::string::npos) continue;  // one by one there, stacked here
    const TensorView &from = files.text->require(name), &to = back.text->require(name);
    ASSERT_EQ(to.shape, from.shape) << name;
    const std::vector<float> expected = as_floats(from), got = as_floats(to);
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 4e-7 * (1 + std::fabs(expected[i]))) << name << " at " << i;
    ++same;
  }
  EXPECT_GT(same, 70u);
  for (int expert : {0, 8}) {  // gate rows before up rows
    const std::string layer = "model.language_model.layers.1.mlp.experts.";
    const std::vector<float> stacked = as_floats(back.text->require(layer + "gate_up_proj"));
    const std::vector<float> gate = as_floats(files.text->require(layer + std::to_string(expert) + ".gate_proj.weight"));
    const std::vector<float> up = as_floats(files.text->require(layer + std::to_string(expert) + ".up_proj.weight"));
    const std::size_t first = static_cast<std::size_t>(expert) * 2 * gate.size();
    EXPECT_TRUE(std::equal(gate.begin(), gate.end(), stacked.begin() + static_cast<std::ptrdiff_t>(first)));
    EXPECT_TRUE(std::equal(up.begin(), up.end(), stacked.begin() + static_cast<std::ptrdiff_t>(first + gate.size())));
  }
  EXPECT_EQ(back.config.text.num_experts, 9);
  EXPECT_EQ(back.config.text.rotary_dim, files.config.text.rotary_dim);
  EXPECT_EQ(back.config.vision.num_position_embeddings, files.config.vision.num_position_embeddings);
  EXPECT_EQ(back.config.image_token_id, files.config.image_token_id);
  const std::vector<float> before = last_logits(config.parent_path(), backend), after = last_logits(folder.path() / "back", backend);
  for (std::size_t i = 0; i < before.size(); ++i) ASSERT_NEAR(after[i], before[i], 1e-4);
}

TEST(prune, makes_a_folder_of_a_quantised_file) {
  const test::TempFolder folder;
  cpu::CpuBackend backend({.threads = 2});
  const model::ModelFiles files = model::open_model_files(kDemo);
  prune(files, backend, folder.path() / "half", at_random(0.5));
  prune(files, backend, folder.path() / "half.gguf", at_random(0.5));
  const model::ModelFiles half = model::open_model_files(folder.path() / "half");
  EXPECT_EQ(half.config.text.num_experts, 16);
  EXPECT_TRUE(half.config.vision.present);
  EXPECT_EQ(half.chat_template, files.chat_template);
  EXPECT_EQ(half.generation_config_json, files.generation_config_json);
  const TensorView& experts = half.text->require("model.language_model.layers.2.mlp.experts.gate_up_proj");
  EXPECT_EQ(experts.type, DType::bf16);
  EXPECT_EQ(experts.shape.front(), 16u);

  const text::Tokenizer ours = engine::open_tokenizer(half), theirs = engine::open_tokenizer(files);
  for (const char* text : {"What is 34 + 58?", "<|im_start|>user\n<think> h\u00e9llo  \n\n c's e\u0301<|im_end|>", "\t \u65e5\u672c\u8a9e \"quoted\" \\"}) {
    EXPECT_EQ(ours.encode(text, text::SpecialTokens::parse), theirs.encode(text, text::SpecialTokens::parse)) << text;
  }
  EXPECT_EQ(ours.eos_id(), theirs.eos_id());
  EXPECT_EQ(ours.pad_id(), theirs.pad_id());

  // Every value is the quantised one, rounded to bfloat16: by up to 2^-8 of itself.
  const GgufFile pruned(folder.path() / "half.gguf");
  for (const auto& [name, theirs_name] : {std::pair("token_embd.weight", "embed_tokens.weight"),
                                          std::pair("blk.3.attn_q.weight", "layers.3.self_attn.q_proj.weight"),
                                          std::pair("blk.5.ffn_down_exps.weight", "layers.5.mlp.experts.down_proj")}) {
    const std::vector<float> expected = as_floats(pruned.require(name));
    const std::vector<float> got = as_floats(half.text->require(std::string("model.language_model.") + theirs_name));
    ASSERT_EQ(got.size(), expected.size()) << name;
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], std::fabs(expected[i]) * 0x1p-8 + 1e-30) << name << " at " << i;
  }
  EXPECT_FALSE(last_logits(folder.path() / "half", backend).empty());
}

void expect_refused(ErrorKind kind, const std::string& part, const model::ModelFiles& files, const fs::path& output, const PruneOptions& options) {
  cpu::CpuBackend backend({.threads = 2});
  try {
    prune(files, backend, output, options);
    ADD_FAILURE() << "not refused: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_THAT(error.what(), ::testing::HasSubstr(part));
  }
}

TEST(prune, refuses_what_it_cannot_do_and_writes_nothing) {
  const test::TempFolder folder;
  const model::ModelFiles moe = model::open_model_files(kDemo);
  const fs::path out = folder.path() / "out.gguf";
  expect_refused(ErrorKind::usage, "the router picks 4", moe, out, at_random(0.05));
  expect_refused(ErrorKind::usage, "above 0 and up to 1", moe, out, at_random(0));
  expect_refused(ErrorKind::usage, "above 0 and up to 1", moe, out, at_random(1.5));
  const fs::path dense = fs::path(HEIRLOOM_SOURCE_DIR) / "models" / "demo-vl.gguf";
  expect_refused(ErrorKind::usage, "dense model", model::open_model_files(dense), out, at_random(0.5));
  expect_refused(ErrorKind::usage, "cannot create", moe, folder.path() / "no" / "folder.gguf", at_random(0.5));
  PruneOptions without_pictures = at_random(0.5);
  without_pictures.text_only = true;
  expect_refused(ErrorKind::usage, "a folder holds the whole model", moe, folder.path() / "folder", without_pictures);
  PruneOptions typed = at_random(0.5);
  typed.type = DType::q8_0;
  expect_refused(ErrorKind::usage, "leave --type away", moe, folder.path() / "folder", typed);
  PruneOptions empty{.keep = 0.5};
  expect_refused(ErrorKind::usage, "holds no text", moe, out, empty);
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(prune, leaves_nothing_when_the_disk_is_full_or_the_user_stops_it) {
  const test::TempFolder folder;
  const model::ModelFiles moe = model::open_model_files(kDemo);
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1 << 20, old.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  expect_refused(ErrorKind::does_not_fit, "free some space", moe, folder.path() / "out.gguf", at_random(0.5));
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(fs::is_empty(folder.path()));

  PruneOptions stopped = at_random(0.5);
  stopped.progress = [](double fraction, std::string_view) {
    if (fraction > 0.3) throw Error(ErrorKind::cancelled, "stopped by the user");
  };
  expect_refused(ErrorKind::cancelled, "stopped", moe, folder.path() / "out.gguf", stopped);
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

}  // namespace
}  // namespace heirloom::tools
