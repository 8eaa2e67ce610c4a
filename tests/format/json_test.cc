// The JSON parser's limits: nothing recurses, nothing is quadratic, a message is one line.
#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace heirloom {
namespace {

std::string refusal(const std::string& text, int max_depth = 100) {
  try {
    parse_json(text, "file.json", ErrorKind::usage, max_depth);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "accepted";
}

TEST(json, refuses_deep_nesting_without_recursion) {
  for (const char* open : {"[", "{\"a\":", "[{\"a\":"}) {
    std::string text;
    for (int i = 0; i < 100'000; ++i) text += open;
    EXPECT_THAT(refusal(text), testing::HasSubstr("nested deeper than 100 levels"));
  }
}

TEST(json, accepts_exactly_the_allowed_depth) {
  EXPECT_EQ(refusal("[[[1]]]", 3), "accepted");
  EXPECT_THAT(refusal("[[[1]]]", 2), testing::HasSubstr("byte 2"));
  EXPECT_EQ(refusal(R"(["[[[[", "\"[[[[", {"[[": "{{{"}])", 2), "accepted");
}

TEST(json, names_the_byte_of_a_syntax_error_without_quoting_the_input) {
  EXPECT_THAT(refusal("{\"a\": tru}"), testing::StartsWith("file.json: invalid JSON at byte "));
  const std::string message = refusal("{\"a\": \"" + std::string(100'000, 'x'));
  EXPECT_LT(message.size(), 300u);
  EXPECT_THAT(refusal("\"\xff\""), testing::HasSubstr("UTF-8"));
}

TEST(json, refuses_what_is_no_single_value) {
  for (const char* text :
       {"", " ", "{", "}", "[1,]", "1 2", "nul", "'a'", "{\"a\" 1}", "[1}", "NaN", "1e999"}) {
    EXPECT_THAT(refusal(text), testing::HasSubstr("invalid JSON")) << text;
  }
  EXPECT_THAT(refusal(std::string("1\0 garbage", 10)), testing::HasSubstr("zero byte"));
}

TEST(json, keeps_the_last_value_of_a_key_given_twice) {
  EXPECT_EQ(parse_json(R"({"a": 1, "b": 2, "a": 3})", "x").dump(), R"({"a":3,"b":2})");
  EXPECT_EQ(parse_sorted_json(R"({"b": 1, "a": 2, "b": 3})", "x").dump(), R"({"a":2,"b":3})");
}

TEST(json, keeps_key_order_only_where_asked) {
  EXPECT_EQ(parse_json(R"({"b": 1, "a": 2})", "x").dump(), R"({"b":1,"a":2})");
  EXPECT_EQ(parse_sorted_json(R"({"b": 1, "a": 2})", "x").dump(), R"({"a":2,"b":1})");
}

TEST(json, bounds_the_cost_of_ordered_objects_and_takes_them_sorted) {
  std::string text = "{";
  for (int i = 0; i < 50'000; ++i) text += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":0";
  EXPECT_THAT(refusal(text + "}"), testing::HasSubstr("too many keys"));
  EXPECT_THAT(refusal(text), testing::HasSubstr("too many keys"));  // also when it is never closed
  EXPECT_EQ(parse_sorted_json(text + "}", "x").size(), 50'000u);
}

TEST(json, bounds_the_number_of_values) {
  std::string text = "[";
  text.reserve(40'000'000);
  for (int i = 0; i < 17'000'000; ++i) text += "0,";
  EXPECT_THAT(refusal(text), testing::HasSubstr("more than 16000000 values"));
}

}  // namespace
}  // namespace heirloom
