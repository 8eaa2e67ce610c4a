// The prefix cache from the command line: run --cache-dir, chat --session, and what --log-level debug says of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/cli_run.h"

namespace heirloom::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class cache_cli : public testing::Test {
 protected:
  cache_cli() : folder_(fs::temp_directory_path() / ("heirloom-cache-cli-" + std::to_string(::getpid()))) { fs::remove_all(folder_); }
  ~cache_cli() override { fs::remove_all(folder_); }
  static nlohmann::json json(const Output& output) {
    EXPECT_EQ(output.code, 0) << output.err;
    return nlohmann::json::parse(output.out);
  }
  std::string run(const std::string& question, const std::string& more = "") const {
    return "run demo-moe -p '" + question + "' --json --device cpu --cache-dir " + quoted(folder_ / "cache") + " " + more;
  }
  fs::path folder_;
};

TEST_F(cache_cli, run_repeats_a_prompt_from_disk_with_the_same_answer) {
  const auto first = json(heirloom(run("What is 34 + 58?"))), second = json(heirloom(run("What is 34 + 58?")));
  EXPECT_EQ(first["cached_tokens"], 0);
  EXPECT_EQ(second["cached_tokens"], second["prompt_tokens"]);
  EXPECT_EQ(second["token_ids"], first["token_ids"]);
  EXPECT_EQ(json(heirloom(run("What is 34 + 58?", "--kv-type f16")))["cached_tokens"], 0);  // other numerics, other states
}

TEST_F(cache_cli, debug_says_where_the_prefix_first_differed) {
  json(heirloom(run("What is 34 + 58?")));
  const Output other = heirloom(run("What is 34 - 58?", "--log-level debug"));
  EXPECT_EQ(other.code, 0);
  // Index and text of both sides: the questions part at the operator.
  EXPECT_THAT(other.err, ContainsRegex("prefix cache: [0-9]+ of [0-9]+ tokens from a snapshot; first differs at token [0-9]+: \" -\" here, \" \\+\" in the cache"));
  const Output same = heirloom(run("What is 34 + 58?", "--log-level debug"));
  EXPECT_THAT(same.err, HasSubstr("prefix cache: 24 of 24 tokens from a snapshot\n"));
  const Output first = heirloom("run demo-moe -p 'Hello!' --device cpu --log-level debug");
  EXPECT_THAT(first.err, HasSubstr("first differs at token 0: \"<|im_start|>\" here, nothing in the cache"));
}

TEST_F(cache_cli, a_damaged_file_is_one_line_and_a_cold_start) {  // case C06
  const auto cold = json(heirloom(run("What is 34 + 58?")));
  for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
    if (entry.path().extension() == ".snap") fs::resize_file(entry.path(), entry.file_size() / 2);
  }
  const auto snapshots = std::ranges::count_if(fs::recursive_directory_iterator(folder_), [](const auto& e) { return e.path().extension() == ".snap"; });
  const Output output = heirloom(run("What is 34 + 58?", "--log-level warning"));
  EXPECT_EQ(json(output)["token_ids"], cold["token_ids"]);
  EXPECT_EQ(json(output)["cached_tokens"], 0);
  EXPECT_EQ(std::ranges::count(output.err, '\n'), snapshots) << output.err;
}

TEST_F(cache_cli, chat_goes_on_with_a_session_from_its_snapshots) {
  fs::create_directories(folder_);
  const std::string chat = "chat demo-moe --device cpu --timings --session " + quoted(folder_ / "talk.json");
  const Output first = heirloom(chat, "What is 34 + 58?\n");
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr("prompt 24 tokens, 0 of them cached"));
  const Output second = heirloom(chat, "What is 10 + 11?\n");
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(second.err, HasSubstr("(conversation of 1 turns goes on)"));
  EXPECT_THAT(second.err, ContainsRegex("prompt [0-9]+ tokens, [1-9][0-9]* of them cached"));
  EXPECT_TRUE(fs::is_directory(folder_ / "talk.json.cache"));
  const Output cold = heirloom("chat demo-moe --device cpu --cache-ram 0", "What is 34 + 58?\nWhat is 10 + 11?\n");
  EXPECT_EQ(first.out + second.out, cold.out);
}

}  // namespace
}  // namespace heirloom::test
