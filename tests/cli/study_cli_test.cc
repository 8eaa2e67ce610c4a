// `bench --study` as its users see it, without a GPU: arguments, what is measured, what is skipped and why. Figures are not judged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/cli_run.h"

namespace heirloom::test {
namespace {

using ::testing::HasSubstr;

TEST(study_cli, wrong_arguments_are_one_line_and_exit_code_2) {
  for (const auto& [arguments, told] : {std::pair{"bench", "--study"}, {"bench demo-moe --study", "demo-moe"}, {"bench --only delta", "--study"},
                                        {"bench --study --only speed", "speed"}, {"bench --study --repeat 0", "--repeat"}}) {
    const Output output = heirloom(arguments);
    EXPECT_EQ(output.code, 2) << arguments;
    EXPECT_EQ(output.out, "") << arguments;
    EXPECT_EQ(std::count(output.err.begin(), output.err.end(), '\n'), 1) << arguments << "\n" << output.err;
    EXPECT_THAT(output.err, HasSubstr(told)) << arguments;
  }
}

TEST(study_cli, the_cpu_measures_its_part_and_each_gpu_part_says_why_it_is_skipped) {
  const Output output = heirloom("bench --study --only gemm,delta --repeat 1 --device cpu --json");
  ASSERT_EQ(output.code, 0) << output.err;
  const auto json = nlohmann::json::parse(output.out);
  EXPECT_THAT(json["machine"]["cpu"], HasSubstr("cpu "));
  EXPECT_EQ(json["machine"]["gpu"], "");
  ASSERT_EQ(json["parts"].size(), 2u);
  const auto &gemm = json["parts"][0], &delta = json["parts"][1];
  EXPECT_EQ(gemm["name"], "gemm");
  EXPECT_TRUE(gemm["rows"].empty());
  ASSERT_EQ(gemm["skipped"].size(), 1u);
  EXPECT_THAT(gemm["skipped"][0], HasSubstr("needs a GPU (--device cpu)"));
  EXPECT_EQ(delta["name"], "delta");
  EXPECT_EQ(delta["skipped"].size(), 1u);
  ASSERT_EQ(delta["rows"].size(), 2u);
  const double first = delta["rows"][0]["median"], second = delta["rows"][1]["median"];
  EXPECT_GT(second, 0);
  EXPECT_EQ(delta["rows"][0]["times_better"], 0);
  EXPECT_NEAR(delta["rows"][1]["times_better"], first / second, 1e-9 * first / second);
  EXPECT_THAT(json["sources"], HasSubstr("arXiv:2606.24031"));
}

TEST(study_cli, the_table_has_a_line_a_figure_and_what_the_papers_say_beside_it) {
  const Output output = heirloom("bench --study --only attention,delta --device cpu --repeat 1");
  ASSERT_EQ(output.code, 0) << output.err;
  EXPECT_THAT(output.out, HasSubstr("\nattention: "));
  EXPECT_THAT(output.out, HasSubstr("\n  skipped: forms of attention: needs a GPU (--device cpu)\n"));
  EXPECT_THAT(output.out, HasSubstr("\n  CPU, a call a token "));
  EXPECT_THAT(output.out, HasSubstr(" ms "));
  EXPECT_THAT(output.out, HasSubstr("\n  beside it: [goal] chunked"));
}

TEST(study_cli, the_needle_in_ten_thousand_tokens_is_found) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "10,000 tokens take a minute under sanitizers";
#endif
  const auto json = nlohmann::json::parse(heirloom("bench --study --only needle --device cpu --json").out);
  const auto& row = json["parts"][0]["rows"][0];
  const std::string what = row["what"];
  EXPECT_THAT(row["note"], HasSubstr("right: \"The secret code of Yara is 7256.\""));
  const int tokens = std::stoi(what.substr(what.find(" of ") + 4));
  EXPECT_NEAR(tokens, 10000, 200);
}

}  // namespace
}  // namespace heirloom::test
