// A prompt gives the same bits whether it is read at once, in pieces of any size, or token by token.
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "backend/cpu/cpu_backend.h"
#include "model/model_files.h"
#include "support/golden.h"
#include "tools/sequence.h"

namespace heirloom::tools {
namespace {

std::filesystem::path bundled(const char* name) {
  return std::filesystem::path(HEIRLOOM_SOURCE_DIR) / "models" / (std::string(name) + ".gguf");
}

std::vector<std::int32_t> prompt_of(int tokens, int vocab) {
  std::mt19937 random(7);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % static_cast<unsigned>(vocab));
  return ids;
}

/// Logits of the last token and the states after it.
struct Outcome {
  std::vector<float> logits, recurrent, conv;
  bool operator==(const Outcome&) const = default;
};

Outcome read_in_pieces(model::Model& model, const std::vector<std::int32_t>& ids, const std::vector<int>& pieces, DType kv) {
  Sequence sequence(model, kv);
  Outcome outcome;
  std::size_t at = 0;
  for (std::size_t piece = 0; at < ids.size(); ++piece) {
    const std::size_t count = std::min<std::size_t>(static_cast<std::size_t>(pieces[piece % pieces.size()]), ids.size() - at);
    outcome.logits = sequence.feed({ids.data() + at, count}, text_positions(static_cast<std::int32_t>(at), static_cast<std::int32_t>(count)),
                                   {}, {static_cast<std::int32_t>(count) - 1});
    at += count;
  }
  outcome.recurrent = sequence.recurrent_state(0);
  outcome.conv = sequence.conv_state(0);
  return outcome;
}

class chunking : public ::testing::TestWithParam<const char*> {};

TEST_P(chunking, does_not_change_a_bit_on_any_tier_or_thread_count) {
  const std::filesystem::path path = bundled(GetParam());
  const model::ModelFiles files = model::open_model_files(path);
  const std::vector<std::int32_t> ids = prompt_of(137, 2000);
  for (int tier = 0; tier <= static_cast<int>(best_cpu_tier()); ++tier) {
    std::optional<Outcome> first;
    for (const int threads : {1, 3}) {
      cpu::CpuBackend backend({.threads = threads, .tier = static_cast<CpuTier>(tier)});
      const auto model = model::bind_model(files, backend);
      for (const std::vector<int>& pieces : {std::vector<int>{137}, {64}, {1, 2, 3, 31}, {100, 1}}) {
        const Outcome outcome = read_in_pieces(*model, ids, pieces, DType::f32);
        if (!first) first = outcome;
        EXPECT_TRUE(outcome == *first) << backend.description() << ", pieces of " << pieces.front();
      }
    }
  }
}

TEST_P(chunking, token_by_token_equals_at_once_with_every_kv_type) {
  const model::ModelFiles files = model::open_model_files(bundled(GetParam()));
  const std::vector<std::int32_t> ids = prompt_of(130, 2000);
  cpu::CpuBackend backend({.threads = 2});
  const auto model = model::bind_model(files, backend);
  for (const DType kv : {DType::f32, DType::f16, DType::bf16}) {
    EXPECT_TRUE(read_in_pieces(*model, ids, {130}, kv) == read_in_pieces(*model, ids, {1}, kv)) << dtype_name(kv);
  }
}

INSTANTIATE_TEST_SUITE_P(bundled, chunking, ::testing::Values("demo-vl", "demo-moe"), [](const auto& instance) {
  std::string name = instance.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
});

}  // namespace
}  // namespace heirloom::tools
