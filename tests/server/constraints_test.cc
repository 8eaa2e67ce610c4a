// Constrained decoding: what holds, what is refused, and where the reasoning ends. The fake model follows its script where
// the constraint allows it and else takes the first allowed character.
#include <gtest/gtest.h>

#include "server/test_server.h"

namespace heirloom::test {
namespace {

Json J(const std::string& text) { return Json::parse(text); }

struct Asked {
  Reply reply;
  std::string content() const { return reply.json()["choices"][0]["message"]["content"].get<std::string>(); }
};

class constraints : public testing::Test {
 protected:
  /// The model wants to say `text`; `field` constrains it.
  Asked ask(const std::string& text, const std::string& field, int max_tokens = 400) {
    server.engine.script = [text](const Request&) {
      FakeAnswer answer;
      answer.text = text;
      return answer;
    };
    Json body = J("{" + field + "}");
    body["messages"] = J(R"([{"role": "user", "content": "x"}])");
    body["max_tokens"] = max_tokens;
    return {post(server.port(), "/v1/chat/completions", body)};
  }
  Asked with_schema(const std::string& text, const std::string& schema) {
    return ask(text, R"("response_format": {"type": "json_schema", "json_schema": {"name": "s", "strict": true, "schema": )" + schema + "}}");
  }
  /// 400 whose parameter ends with `where`.
  void refused(const std::string& schema, const std::string& where) {
    const Asked asked = with_schema("x", schema);
    ASSERT_EQ(asked.reply.status, 400) << schema << asked.reply.body;
    EXPECT_EQ(asked.reply.json()["error"]["param"], "response_format.json_schema.schema" + where) << schema;
  }

  TestServer server;
};

TEST_F(constraints, json_object_is_an_object_whatever_the_model_wants) {
  EXPECT_EQ(ask(R"({"a": [1, "x"]})", R"("response_format": {"type": "json_object"})").content(), R"({"a": [1, "x"]})");
  EXPECT_TRUE(J(ask("Sorry, no.", R"("response_format": {"type": "json_object"})").content()).is_object());
}

TEST_F(constraints, a_schema_holds) {
  const std::string schema = R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"], "additionalProperties": false})";
  EXPECT_EQ(with_schema(R"({"name": "Ada", "age": 36})", schema).content(), R"({"name": "Ada", "age": 36})");
  const Asked forced = with_schema("I would rather chat.", schema);
  EXPECT_EQ(forced.reply.status, 200) << forced.reply.body;
}

TEST_F(constraints, J02_patterns_hold_or_are_refused) {
  const auto property = [](const std::string& pattern) {
    return R"({"type": "object", "properties": {"p": {"type": "string", "pattern": )" + Json(pattern).dump() + R"(}}, "required": ["p"]})";
  };
  const auto value = [&](const std::string& wanted, const std::string& pattern) {
    const Asked asked = with_schema(R"({"p": ")" + wanted + R"("})", property(pattern));
    EXPECT_EQ(asked.reply.status, 200) << pattern << asked.reply.body;
    return asked.reply.status == 200 ? J(asked.content())["p"].get<std::string>() : "";
  };
  EXPECT_EQ(value("1234", "^\\d+$"), "1234");
  EXPECT_EQ(value("a-b_9", "^[\\w-]+$"), "a-b_9");
  EXPECT_EQ(value("aa", "^a{2,3}$"), "aa");
  EXPECT_EQ(value("  ", "^\\s*$"), "  ");
  EXPECT_EQ(value("hello!", "^hello\\!$"), "hello!");  // J01
  for (const char* bad : {"(?i)x", "(?=x)", "(?!x)", "(?<=x)y", "\\bx", "(a)\\1", "[", "a{1,2000}"}) {
    refused(property(bad), ".properties.p.pattern");
  }
}

TEST_F(constraints, J04_only_listed_values_come_out) {
  const std::string schema = R"({"type": "object", "properties": {"v": {"$ref": "#/$defs/e"}, "c": {"const": "x\"y"}}, "required": ["v", "c"],
    "$defs": {"e": {"enum": ["a\"b", "two\nlines", null, 5, true, "\ud83d\ude00"]}}})";
  for (const char* value : {R"("a\"b")", R"("two\nlines")", "null", "5", "true", "\"\xf0\x9f\x98\x80\""}) {
    const std::string wanted = std::string(R"({"v": )") + value + R"(, "c": "x\"y"})";
    const Asked asked = with_schema(wanted, schema);
    ASSERT_EQ(asked.reply.status, 200) << asked.reply.body;
    EXPECT_EQ(asked.content(), wanted);
  }
}

TEST_F(constraints, dates_are_of_the_calendar) {
  const auto date = [&](const std::string& wanted, const std::string& format) {
    const Asked asked = with_schema('"' + wanted + '"', R"({"type": "string", "format": ")" + format + R"("})");
    EXPECT_EQ(asked.reply.status, 200) << asked.reply.body;
    return asked.reply.status == 200 ? J(asked.content()).get<std::string>() : "";
  };
  const std::string nullable = R"({"type": ["string", "null"], "format": "date"})";
  EXPECT_EQ(date("2024-12-31", "date"), "2024-12-31");
  EXPECT_EQ(date("2024-12-31T23:59:59.5+02:00", "date-time"), "2024-12-31T23:59:59.5+02:00");
  for (const char* leap : {"2024-02-29", "2000-02-29", "1996-02-29"}) EXPECT_EQ(date(leap, "date"), leap);
  EXPECT_EQ(with_schema("null", nullable).content(), "null");
  EXPECT_NE(with_schema("\"2024-11-31\"", nullable).content(), "\"2024-11-31\"");
  for (const char* none : {"2024-11-31", "0000-01-01", "2023-02-29", "1900-02-29", "2024-02-30", "2024-13-01"}) EXPECT_NE(date(none, "date"), none);
}

TEST_F(constraints, J01_what_cannot_be_enforced_is_named) {
  refused(R"({"type": "object", "properties": {"a": {"not": {"type": "string"}}}})", ".properties.a.not");
  refused(R"({"type": "array", "items": {"type": "integer"}, "uniqueItems": true})", ".uniqueItems");
  refused(R"({"type": "array", "contains": {"type": "integer"}})", ".contains");
  refused(R"({"type": "object", "if": {}, "then": {}})", ".if");
  refused(R"({"type": "string", "format": "credit-card"})", ".format");
  refused(R"({"type": "string", "pattern": "^a$", "maxLength": 3})", ".maxLength");
  refused(R"({"$ref": "#/$defs/none"})", ".$ref");
  refused(R"({"$ref": "https://example.com/schema"})", ".$ref");
  refused(R"({"anyOf": [{"type": "string"}], "minLength": 3})", ".minLength");
  refused(R"({"allOf": [{"type": "string"}, {"type": "integer"}]})", ".allOf");
  refused(R"({"enum": ["a", 5], "type": "string"})", ".type");
  refused(R"({"type": "object", "properties": {"a": 5}})", ".properties.a");
  refused(R"({"minLength": 3})", ".minLength");
  refused(R"({"type": "string", "maxLength": 1000000000})", ".maxLength");
}

TEST_F(constraints, J05_broken_grammars_are_refused_and_the_server_lives) {
  EXPECT_EQ(ask("yes", R"("grammar": "root ::= \"yes\" | \"no\"")").content(), "yes");
  for (const std::string& bad : {std::string("root ::= ("), std::string("root ::= root \"a\""), "root ::= " + std::string(1'000'000, 'x'), std::string(""),
                                 std::string("other ::= \"a\"")}) {
    const Asked asked = ask("x", R"("grammar": )" + Json(bad).dump());
    EXPECT_EQ(asked.reply.status, 400) << bad.substr(0, 60) << asked.reply.body;
    EXPECT_EQ(asked.reply.json()["error"]["param"], "grammar");
  }
  EXPECT_EQ(ask("no", R"("grammar": "root ::= \"yes\" | \"no\"")").content(), "no");
}

TEST_F(constraints, choices_and_regexes) {
  EXPECT_EQ(ask("blue", R"("guided_choice": ["red", "blue"])").content(), "blue");
  EXPECT_EQ(ask("12-34", R"("guided_regex": "[0-9]{2}-[0-9]{2}")").content(), "12-34");
  EXPECT_EQ(ask("b\"c", R"("structured_outputs": {"choice": ["b\"c"]})").content(), "b\"c");
  EXPECT_EQ(ask("x", R"("guided_choice": ["a"], "guided_regex": "b")").reply.status, 400);
}

TEST_F(constraints, J09_reasoning_is_free_and_the_answer_is_constrained) {
  server.engine.script = [](const Request&) {
    FakeAnswer answer;
    answer.text = "Any {thought \"here\n</think>\n\n[1, 2] and more";
    return answer;
  };
  Json body = J(R"({"messages": [{"role": "user", "content": "x"}], "reasoning_effort": "high",
    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "array", "items": {"type": "integer"}}}}})");
  const Json message = post(server.port(), "/v1/chat/completions", body).json()["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "Any {thought \"here");
  EXPECT_EQ(message["content"], "[1, 2]");
}

TEST_F(constraints, a_required_call_is_made_in_the_models_own_form) {
  const std::string tools = R"("tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {
    "a": {"type": "integer"}, "how": {"type": "string", "enum": ["fast", "slow"]}, "note": {"type": "string"}}, "required": ["a", "how"]}}},
    {"type": "function", "function": {"name": "stop"}}])";
  const std::string call = "<tool_call>\n<function=add>\n<parameter=a>\n12\n</parameter>\n<parameter=how>\nslow\n</parameter>\n</function>\n</tool_call>";
  for (const std::string& text : {call, std::string("I would rather not.")}) {
    const Asked asked = ask(text, tools + R"(, "tool_choice": {"type": "function", "function": {"name": "add"}})");
    ASSERT_EQ(asked.reply.status, 200) << asked.reply.body;
    const Json choice = asked.reply.json()["choices"][0];
    ASSERT_TRUE(choice["message"].contains("tool_calls")) << choice.dump();
    EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "add");
    if (choice["finish_reason"] == "tool_calls") {
      const Json arguments = J(choice["message"]["tool_calls"][0]["function"]["arguments"].get<std::string>());
      EXPECT_TRUE(arguments["a"].is_number_integer());
      EXPECT_TRUE(text != call || arguments["how"] == "slow");
    }
  }
  EXPECT_EQ(ask("<tool_call>\n<function=stop>\n</function>\n</tool_call>", tools + R"(, "tool_choice": "required")")
                .reply.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"],
            "stop");
}

}  // namespace
}  // namespace heirloom::test
