// The rule for first lines that change with every request (case A20), alone and through the engine.
#include "engine/volatile_lines.h"

#include <gtest/gtest.h>

#include "heirloom/engine.h"

namespace heirloom::test {
namespace {

Json stripped(Json messages) {
  engine::strip_volatile_lines(messages);
  return messages;
}

TEST(volatile_lines, go_from_the_beginning_only) {
  EXPECT_EQ(engine::without_volatile_lines("x-anthropic-billing-header: cch=AAAAA;\nYou help."), "You help.");
  EXPECT_EQ(engine::without_volatile_lines("X-Anthropic-Billing-Header: a\nx-anthropic-billing-header: b\nYou"), "You");
  EXPECT_EQ(engine::without_volatile_lines("x-anthropic-billing-header: all there is"), "");
  EXPECT_EQ(engine::without_volatile_lines("x-anthropic-billing-header without a colon\nYou"), "x-anthropic-billing-header without a colon\nYou");
  EXPECT_EQ(engine::without_volatile_lines("You\nx-anthropic-billing-header: b"), "You\nx-anthropic-billing-header: b");
  EXPECT_EQ(engine::without_volatile_lines(""), "");
}

TEST(volatile_lines, go_from_the_first_system_message_only) {
  const Json header = "x-anthropic-billing-header: cch=1;\nBe brief.";
  EXPECT_EQ(stripped({{{"role", "system"}, {"content", header}}})[0]["content"], "Be brief.");
  EXPECT_EQ(stripped({{{"role", "developer"}, {"content", header}}})[0]["content"], "Be brief.");
  EXPECT_EQ(stripped({{{"role", "user"}, {"content", header}}})[0]["content"], header);
  const Json later = stripped({{{"role", "user"}, {"content", "hi"}}, {{"role", "system"}, {"content", header}}});
  EXPECT_EQ(later[1]["content"], header);
  const Json parts = stripped({{{"role", "system"},
                                {"content", {{{"type", "text"}, {"text", "x-anthropic-billing-header: cch=1;"}},
                                             {{"type", "text"}, {"text", "Be brief."}}}}}});
  ASSERT_EQ(parts[0]["content"].size(), 1u);
  EXPECT_EQ(parts[0]["content"][0]["text"], "Be brief.");
  for (const Json& odd : {Json(), Json::array(), Json(5), Json{{{"role", "system"}}}, Json{{{"role", "system"}, {"content", 7}}}}) {
    EXPECT_EQ(stripped(odd), odd);
  }
}

Request with_header(const std::string& value) {
  std::string rules;
  for (int i = 0; i < 60; ++i) rules += "Answer with the number only. ";
  Request request;
  request.messages = {{{"role", "system"}, {"content", "x-anthropic-billing-header: cc_version=1; cch=" + value + ";\n" + rules}},
                      {{"role", "user"}, {"content", "What is 34 + 58?"}}};
  request.max_tokens = 2;
  return request;
}

TEST(volatile_lines, two_requests_that_differ_in_them_share_their_prompt) {
  EngineOptions options;
  options.model = "demo-moe";
  options.device = "cpu";
  options.context_tokens = 2048;
  const auto engine = Engine::load(options);
  const std::int64_t tokens = engine->submit(with_header("AAAAA"), {}, {})->wait().prompt_tokens;
  EXPECT_EQ(engine->submit(with_header("BBBBB"), {}, {})->wait().cached_tokens, tokens);
  options.strip_volatile_lines = false;
  const auto literal = Engine::load(options);
  literal->submit(with_header("AAAAA"), {}, {})->wait();
  EXPECT_EQ(literal->submit(with_header("BBBBB"), {}, {})->wait().cached_tokens, 0);
}

}  // namespace
}  // namespace heirloom::test
