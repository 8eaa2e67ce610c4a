#include "server/output_parser.h"

#include <gtest/gtest.h>

namespace heirloom::server {
namespace {

struct Parsed {
  std::string reasoning, content;
  std::vector<std::string> names, arguments;
  std::vector<bool> closed;
  int malformed = 0, in_reasoning = 0;
  bool operator==(const Parsed&) const = default;
};

Json tool(const std::string& name, Json properties) {
  return {{"type", "function"}, {"function", {{"name", name}, {"parameters", {{"type", "object"}, {"properties", std::move(properties)}}}}}};
}

const Json kTools = Json::array({tool("ls", {{"p", {{"type", "string"}}}}),
                                 tool("add", {{"a", {{"type", "number"}}}, {"b", {{"type", "integer"}}}}),
                                 tool("set", {{"on", {{"type", "boolean"}}},
                                              {"tags", {{"type", "array"}, {"items", {{"type", "string"}}}}},
                                              {"note", {{"type", Json::array({"string", "null"})}}},
                                              {"size", {{"anyOf", Json::array({{{"type", "integer"}}, {{"type", "string"}}})}}}})});

Parsed parse_in_pieces(const std::string& text, std::size_t piece, bool thinking, bool truncated) {
  OutputParserOptions options;
  options.starts_in_reasoning = thinking;
  options.read_calls = true;
  options.tools = ToolSchemas(kTools);
  int next_id = 0;
  options.make_call_id = [&] { return "call_" + std::to_string(next_id++); };
  OutputParser parser(options);
  std::vector<OutputDelta> deltas;
  for (std::size_t i = 0; i < text.size(); i += piece) parser.feed(std::string_view(text).substr(i, piece), deltas);
  parser.finish(truncated, deltas);
  Parsed result;
  for (const OutputDelta& delta : deltas) {
    switch (delta.kind) {
      case OutputDelta::Kind::reasoning: result.reasoning += delta.text; break;
      case OutputDelta::Kind::content: result.content += delta.text; break;
      case OutputDelta::Kind::call_begin:
        EXPECT_EQ(delta.call_index, static_cast<int>(result.names.size()));
        EXPECT_EQ(delta.call_id, "call_" + std::to_string(delta.call_index));
        result.names.push_back(delta.text);
        result.arguments.emplace_back();
        result.closed.push_back(false);
        break;
      case OutputDelta::Kind::call_arguments: result.arguments.back() += delta.text; break;
      case OutputDelta::Kind::call_end: result.closed.back() = true; break;
    }
  }
  result.malformed = parser.malformed_calls();
  result.in_reasoning = parser.calls_in_reasoning();
  return result;
}

/// The same result however the text is cut into pieces.
Parsed parse(const std::string& text, bool thinking = false, bool truncated = false) {
  const Parsed whole = parse_in_pieces(text, std::max<std::size_t>(text.size(), 1), thinking, truncated);
  for (const std::size_t piece : {1, 2, 3, 7}) {
    const Parsed cut = parse_in_pieces(text, piece, thinking, truncated);
    EXPECT_TRUE(cut == whole) << "pieces of " << piece << ": content '" << cut.content << "' vs '" << whole.content << "', reasoning '"
                              << cut.reasoning << "' vs '" << whole.reasoning << "', arguments "
                              << (cut.arguments.empty() ? "" : cut.arguments[0]) << " vs " << (whole.arguments.empty() ? "" : whole.arguments[0]);
  }
  return whole;
}

TEST(output_parser, plain_text_passes_unchanged) {
  for (const std::string text : {"", " ", "Hello.", " \n Hello. \n", "a < b, <b>bold</b>, <tool", "x</think>y", "</tool_call>"}) {
    EXPECT_EQ(parse(text).content, text);
    EXPECT_TRUE(parse(text).names.empty());
  }
}

TEST(output_parser, P01_text_before_a_call_stays_content) {
  const Parsed p = parse("I will look.\n<tool_call>\n<function=ls>\n<parameter=p>\n/tmp\n</parameter>\n</function>\n</tool_call>");
  EXPECT_EQ(p.content, "I will look.");
  EXPECT_EQ(p.names, std::vector<std::string>{"ls"});
  EXPECT_EQ(p.arguments[0], R"({"p": "/tmp"})");
  EXPECT_TRUE(p.closed[0]);
}

TEST(output_parser, P02_missing_newlines_do_not_swallow_the_next_call) {
  const Parsed p = parse(
      "<tool_call>\n<function=ls>\n<parameter=p>/a\n</parameter>\n</function>\n</tool_call>\n"
      "<tool_call>\n<function=add>\n<parameter=a>\n1.50\n</parameter>\n<parameter=b>2</parameter></function></tool_call>");
  EXPECT_EQ(p.names, (std::vector<std::string>{"ls", "add"}));
  EXPECT_EQ(p.arguments[0], R"({"p": "/a"})");
  EXPECT_EQ(p.arguments[1], R"({"a": 1.50, "b": 2})");
  EXPECT_EQ(p.content, "");
}

TEST(output_parser, P03_a_call_before_the_end_of_reasoning_is_a_call_and_counted) {
  const Parsed p = parse("I need the list.\n<tool_call>\n<function=ls>\n<parameter=p>\n/tmp\n</parameter>\n</function>\n</tool_call>\n</think>\n\nDone.", true);
  EXPECT_EQ(p.reasoning, "I need the list.");
  EXPECT_EQ(p.names, std::vector<std::string>{"ls"});
  EXPECT_EQ(p.in_reasoning, 1);
  EXPECT_EQ(p.content, "Done.");
}

TEST(output_parser, talk_about_calls_in_reasoning_stays_reasoning) {
  const std::string text = "I could write <tool_call> or <tool_call><function=unknown> here.";
  const Parsed p = parse(text + "</think>ok", true);
  EXPECT_EQ(p.reasoning, text);
  EXPECT_EQ(p.content, "ok");
  EXPECT_TRUE(p.names.empty());
}

TEST(output_parser, P07_the_end_of_reasoning_never_leaks) {
  const Parsed p = parse("Let me see < and </thin and so.\n</think>\n\nThe answer is 5.\n", true);
  EXPECT_EQ(p.reasoning, "Let me see < and </thin and so.");
  EXPECT_EQ(p.content, "The answer is 5.\n");
}

TEST(output_parser, reasoning_that_the_model_opens_itself_is_split_too) {
  EXPECT_EQ(parse("<think>\nhm\n</think>\n\nyes").reasoning, "hm");
  EXPECT_EQ(parse("<think>\nhm\n</think>\n\nyes").content, "yes");
  EXPECT_EQ(parse("<think>\n\n</think>\n\nyes").reasoning, "");
  EXPECT_EQ(parse("<think>hm</think>yes", true).reasoning, "hm");
  EXPECT_EQ(parse("</think>\n\nyes").content, "yes");
  EXPECT_EQ(parse("cut off", true, true).reasoning, "cut off");
  EXPECT_EQ(parse("cut off</thi", true, true).reasoning, "cut off</thi");
}

TEST(output_parser, P08_a_long_argument_streams_whole) {
  std::string text;
  for (int i = 0; text.size() < 300'000; ++i) text += "line " + std::to_string(i) + " \"quoted\" \\ <parameter> </param\t\xc3\xa4\n";
  const std::string call = "<tool_call>\n<function=ls>\n<parameter=p>\n" + text + "\n</parameter>\n</function>\n</tool_call>";
  const Parsed whole = parse_in_pieces(call, call.size(), false, false);
  const Parsed pieces = parse_in_pieces(call, 5, false, false);
  EXPECT_TRUE(whole == pieces);
  EXPECT_EQ(Json::parse(whole.arguments[0]).at("p").get<std::string>(), text);
}

TEST(output_parser, arguments_take_the_types_of_the_schema) {
  const auto argument = [](const std::string& key, const std::string& value) {
    const Parsed p = parse("<tool_call>\n<function=set>\n<parameter=" + key + ">\n" + value + "\n</parameter>\n</function>\n</tool_call>");
    return p.arguments.empty() ? Json() : Json::parse(p.arguments[0]).at(key);
  };
  EXPECT_EQ(argument("on", "true"), Json(true));
  EXPECT_EQ(argument("on", "False"), Json(false));
  EXPECT_EQ(argument("on", "perhaps"), Json("perhaps"));
  EXPECT_EQ(argument("tags", R"(["a", "b"])"), Json::array({"a", "b"}));
  EXPECT_EQ(argument("tags", "[broken"), Json("[broken"));
  EXPECT_EQ(argument("note", "null"), Json());
  EXPECT_EQ(argument("note", "5"), Json("5"));
  EXPECT_EQ(argument("size", "5"), Json(5));
  EXPECT_EQ(argument("size", "large"), Json("large"));
  EXPECT_EQ(argument("undeclared", "5"), Json("5"));
  EXPECT_EQ(argument("undeclared", "two\nlines\n"), Json("two\nlines\n"));
}

TEST(output_parser, missing_closing_tags_lose_nothing) {
  const std::string expected = R"({"a": 1, "b": 2})";
  for (const std::string text : {
           "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</function>\n</tool_call>",
           "<tool_call>\n<function=add>\n<parameter=a>\n1\n<parameter=b>\n2\n</parameter>\n</tool_call>",
           "<tool_call><function=add><parameter=a>1</parameter><parameter=b>2</function></tool_call>",
           "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n</function>",
           "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n",
           "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>",
           "<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n</function>\n</tool_call>",
           "<tool_call>\r\n<function=add>\r\n<parameter=a>\r\n1\r\n</parameter>\r\n<parameter=b>\r\n2\r\n</parameter>\r\n</function>\r\n</tool_call>",
           "<tool_call>\n<function=\"add\">\n<parameter=\"a\">1</parameter><parameter name=\"b\">2</parameter></function></tool_call>",
           "<tool_call>\n<function name=\"add\">\n<parameter=a>1</parameter>\n<parameter=b>2</parameter>\n</function>\n</tool_call>",
       }) {
    const Parsed p = parse(text);
    ASSERT_EQ(p.names, std::vector<std::string>{"add"}) << text;
    EXPECT_EQ(p.arguments[0], expected) << text;
    EXPECT_EQ(p.content, "") << text;
    EXPECT_TRUE(p.closed[0]) << text;
  }
}

TEST(output_parser, several_functions_in_one_tag_are_several_calls) {
  const Parsed p = parse("<tool_call>\n<function=ls>\n<parameter=p>\n/a\n</parameter>\n</function>\n<function=ls>\n</function>\n</tool_call>");
  EXPECT_EQ(p.names, (std::vector<std::string>{"ls", "ls"}));
  EXPECT_EQ(p.arguments[1], "{}");
}

TEST(output_parser, json_calls_are_read_too) {
  for (const std::string text : {
           R"(<tool_call>
{"name": "add", "arguments": {"a": 1, "b": 2}}
</tool_call>)",
           R"(<tool_call>{"name":"add","parameters":{"a":1,"b":2}}</tool_call>)",
           R"(<tool_call>[{"name":"add","arguments":{"a":1,"b":2}}]</tool_call>)",
           R"(<tool_call>{"name":"add","arguments":{"a":1,"b":2}</tool_call>)",
           R"(<tool_call>{"name":"add","arguments":{"a":1,"b":2}}</tool_call>)",
           R"(<tool_call><function=add>{"a":1,"b":2}</function></tool_call>)",
       }) {
    const Parsed p = parse(text);
    ASSERT_EQ(p.names, std::vector<std::string>{"add"}) << text;
    EXPECT_EQ(Json::parse(p.arguments[0]), Json::parse(R"({"a": 1, "b": 2})")) << text;
    EXPECT_EQ(p.content, "") << text;
  }
  const Parsed encoded = parse(R"(<tool_call>{"name":"ls","arguments":"{\"p\": \"</tool_call>\"}"}</tool_call>)");
  ASSERT_EQ(encoded.names, std::vector<std::string>{"ls"});
  EXPECT_EQ(Json::parse(encoded.arguments[0]).at("p"), "</tool_call>");
}

TEST(output_parser, what_is_no_call_stays_text) {
  for (const std::string text : {"<tool_call>\nhello\n</tool_call>", "<tool_call>{\"nam\": 1}</tool_call>", "<tool_call>", "<tool_call>\n<func",
                                 "<tool_call>{broken", "see <function=ls> in prose", "<tool_call>\n<function=>x"}) {
    const Parsed p = parse(text);
    EXPECT_TRUE(p.names.empty()) << text;
    EXPECT_EQ(p.content, text) << text;
  }
}

TEST(output_parser, text_after_a_call_is_kept) {
  const Parsed p = parse("A\n<tool_call>\n<function=ls>\n</function>\n</tool_call>\nB");
  EXPECT_EQ(p.content, "A\nB");
  EXPECT_EQ(p.names.size(), 1u);
}

TEST(output_parser, a_call_cut_off_is_left_visibly_unfinished) {
  const Parsed p = parse("<tool_call>\n<function=ls>\n<parameter=p>\nrm -rf /tmp/a", false, true);
  EXPECT_EQ(p.names, std::vector<std::string>{"ls"});
  EXPECT_EQ(p.arguments[0], "{\"p\": \"rm -rf /tmp/a");
  EXPECT_FALSE(p.closed[0]);
}

TEST(output_parser, junk_between_parameters_becomes_content) {
  const Parsed p = parse("<tool_call>\n<function=ls>\nhm <b>\n<parameter=p>\n/a\n</parameter>\nso\n</function>\n</tool_call>");
  EXPECT_EQ(p.arguments[0], R"({"p": "/a"})");
  EXPECT_NE(p.content.find("hm <b>"), std::string::npos);
  EXPECT_NE(p.content.find("so"), std::string::npos);
}

TEST(output_parser, without_tools_tags_are_text) {
  OutputParser parser(OutputParserOptions{});
  std::vector<OutputDelta> deltas;
  const std::string text = "<tool_call>\n<function=ls>\n</function>\n</tool_call>";
  parser.feed(text, deltas);
  parser.finish(false, deltas);
  ASSERT_EQ(deltas.size(), 1u);
  EXPECT_EQ(deltas[0].text, text);
}

}  // namespace
}  // namespace heirloom::server
