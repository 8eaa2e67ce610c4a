// /v1/chat/completions: fields, streams, tools, reasoning, errors.
#include <gtest/gtest.h>

#include "server/test_server.h"

namespace heirloom::test {
namespace {

const std::string kChat = "/v1/chat/completions";

Json say(const std::string& text, const std::string& more = "{}") {
  Json body{{"messages", Json::array({{{"role", "user"}, {"content", "say:" + text}}})}};
  body.update(Json::parse(more));
  return body;
}

Json with_messages(const std::string& messages) { return {{"messages", Json::parse(messages)}}; }

std::string joined(const Reply& reply, const std::string& field) {
  std::string text;
  for (const Json& event : reply.json_events()) {
    for (const Json& choice : event["choices"]) {
      if (choice["delta"].contains(field)) text += choice["delta"][field].get<std::string>();
    }
  }
  return text;
}

const char* const kTools = R"({"tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object",
  "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}}}]})";

TEST(chat_api, answers_with_usage_and_cached_tokens) {
  TestServer server;
  server.engine.script = [](const Request&) {
    FakeAnswer answer;
    answer.text = "Hi!";
    answer.cached_tokens = 7;
    return answer;
  };
  const Json body = post(server.port(), kChat, say("")).json();
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["choices"][0]["message"]["content"], "Hi!");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["usage"]["completion_tokens"], 4);  // the end token counts
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 7);
  EXPECT_FALSE(body["choices"][0]["message"].contains("reasoning_content"));
}

TEST(chat_api, A01_usage_in_a_stream_comes_only_when_asked_for) {
  TestServer server;
  const Reply plain = post(server.port(), kChat, say("ab", R"({"stream": true})"));
  EXPECT_EQ(plain.header("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(plain.events().back(), "[DONE]");
  for (const Json& event : plain.json_events()) {
    EXPECT_FALSE(event.contains("usage"));
    EXPECT_FALSE(event["choices"].empty());
  }
  const Reply with = post(server.port(), kChat, say("ab", R"({"stream": true, "stream_options": {"include_usage": true}})"));
  auto events = with.json_events();
  EXPECT_TRUE(events.back()["choices"].empty());
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 3);
  events.pop_back();
  for (const Json& event : events) EXPECT_TRUE(event["usage"].is_null());
  EXPECT_EQ(joined(with, "content"), "ab");
}

TEST(chat_api, A03_too_long_is_400_before_the_stream_with_both_numbers) {
  TestServer server({}, 200);
  for (const bool stream : {false, true}) {
    const Json streaming{{"stream", stream}};
    Json longer = say(std::string(300, 'x'), streaming.dump());
    Json tail = say("x", streaming.dump());
    tail["max_tokens"] = 190;
    for (const Json& body : {longer, tail}) {
      const Reply reply = post(server.port(), kChat, body);
      EXPECT_EQ(reply.status, 400);
      const Json error = reply.json()["error"];
      EXPECT_EQ(error["code"], "context_length_exceeded");
      EXPECT_NE(error["message"].get<std::string>().find("200"), std::string::npos);
      const Request request = server.engine.last_request();
    }
  }
  EXPECT_EQ(server.engine.running(), 0);
}

TEST(chat_api, A07_no_character_is_ever_split) {
  TestServer server;
  const std::string text = "\xf0\x9f\x98\x80 \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7 \xc3\xa9";
  const Reply stream = post(server.port(), kChat, say(text, R"({"stream": true})"));
  EXPECT_EQ(stream.body.find("\xef\xbf\xbd"), std::string::npos);
  EXPECT_EQ(joined(stream, "content"), text);
  EXPECT_EQ(post(server.port(), kChat, say(text)).json()["choices"][0]["message"]["content"], text);
}

TEST(chat_api, A09_stop_strings_are_never_shown) {
  TestServer server;
  const auto answer = [&](const std::string& stop) {
    return post(server.port(), kChat, say("one###two", R"({"stop": )" + stop + "}")).json()["choices"][0]["message"]["content"];
  };
  EXPECT_EQ(answer(R"("###")"), "one");
  EXPECT_EQ(answer(R"(["x", "y", "z", "##"])"), "one");
  EXPECT_EQ(answer(R"("one")"), "");
  EXPECT_EQ(answer("null"), "one###two");
  const Reply stream = post(server.port(), kChat, say("one###two", R"({"stream": true, "stop": "###"})"));
  EXPECT_EQ(joined(stream, "content"), "one");
  EXPECT_EQ(stream.body.find('#'), std::string::npos);
  for (const char* bad : {R"({"stop": ""})", R"({"stop": ["a", ""]})", R"({"stop": ["1", "2", "3", "4", "5"]})", R"({"stop": 5})", R"({"stop": [5]})"}) {
    EXPECT_EQ(post(server.port(), kChat, say("x", bad)).status, 400) << bad;
  }
}

TEST(chat_api, A10_logit_bias_is_passed_on_and_checked) {
  TestServer server;
  EXPECT_EQ(post(server.port(), kChat, say("x", R"({"logit_bias": {"12": -100, "5": 100}})")).status, 200);
  EXPECT_EQ(server.engine.last_request().sampling.logit_bias.size(), 2u);
  for (const char* bad : {R"({"logit_bias": {"99999": 1}})", R"({"logit_bias": {"-1": 1}})", R"({"logit_bias": {"x": 1}})",
                          R"({"logit_bias": {"1": 101}})", R"({"logit_bias": {"1": "a"}})", R"({"logit_bias": [1]})"}) {
    EXPECT_EQ(post(server.port(), kChat, say("x", bad)).status, 400) << bad;
  }
}

TEST(chat_api, A11_logprobs_have_the_apis_shape) {
  TestServer server;
  const Json plain = post(server.port(), kChat, say("a\xc3\xa9", R"({"logprobs": true})")).json()["choices"][0]["logprobs"];
  ASSERT_EQ(plain["content"].size(), 3u);  // no end token
  EXPECT_EQ(plain["content"][0]["token"], "a");
  EXPECT_EQ(plain["content"][1]["bytes"], Json::array({0xc3}));
  EXPECT_TRUE(plain["content"][0]["top_logprobs"].empty());
  const Json top = post(server.port(), kChat, say("a", R"({"logprobs": true, "top_logprobs": 20})")).json()["choices"][0]["logprobs"];
  EXPECT_EQ(top["content"][0]["top_logprobs"].size(), 20u);
  EXPECT_EQ(post(server.port(), kChat, say("a", R"({"logprobs": true, "top_logprobs": 21})")).status, 400);
  EXPECT_EQ(post(server.port(), kChat, say("a", R"({"top_logprobs": 2})")).status, 400);
  EXPECT_TRUE(post(server.port(), kChat, say("a")).json()["choices"][0]["logprobs"].is_null());
  int entries = 0;
  for (const Json& event : post(server.port(), kChat, say("abc", R"({"logprobs": true, "stream": true})")).json_events()) {
    if (event["choices"][0]["logprobs"].is_object()) entries += static_cast<int>(event["choices"][0]["logprobs"]["content"].size());
  }
  EXPECT_EQ(entries, 3);
}

TEST(chat_api, A13_the_new_name_of_the_token_limit_wins) {
  TestServer server;
  const auto finish = [&](const char* more) { return post(server.port(), kChat, say("abcdefgh", more)).json()["choices"][0]; };
  EXPECT_EQ(finish(R"({"max_completion_tokens": 3})")["message"]["content"], "abc");
  EXPECT_EQ(finish(R"({"max_completion_tokens": 3, "max_tokens": 5})")["message"]["content"], "abc");
  EXPECT_EQ(finish(R"({"max_tokens": 5})")["finish_reason"], "length");
  EXPECT_EQ(finish(R"({"max_tokens": null})")["finish_reason"], "stop");
  for (const char* bad : {R"({"max_tokens": 0})", R"({"max_tokens": -1})", R"({"max_completion_tokens": "12"})", R"({"max_tokens": 1.5})"}) {
    EXPECT_EQ(post(server.port(), kChat, say("x", bad)).status, 400) << bad;
  }
}

TEST(chat_api, A14_content_parts_are_read_or_named) {
  TestServer server;
  const std::string image = R"({"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgoAAAA="}})";
  EXPECT_EQ(post(server.port(), kChat, with_messages(R"([{"role": "user", "content": [{"type": "text", "text": "say:a"}, {"type": "text", "text": "b"}]}])"))
                .json()["choices"][0]["message"]["content"],
            "ab");
  EXPECT_EQ(post(server.port(), kChat, with_messages(R"([{"role": "user", "content": [)" + image + "]}]")).status, 200);
  EXPECT_EQ(server.engine.last_request().images.size(), 1u);
  EXPECT_EQ(server.engine.last_request().images[0].bytes.size(), 11u);
  EXPECT_EQ(server.engine.last_request().messages[0]["content"][0]["type"], "image");
  for (const char* bad : {R"([{"role": "user", "content": []}])", R"([{"role": "user", "content": [{"type": "input_text", "text": "x"}]}])",
                          R"([{"role": "user", "content": [{"type": "video_url"}]}])", R"([{"role": "user", "content": null}])",
                          R"([{"role": "user", "content": 5}])", R"([{"role": "robot", "content": "x"}])", R"([])", R"([5])",
                          R"([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,***"}}]}])"}) {
    const Reply reply = post(server.port(), kChat, with_messages(bad));
    EXPECT_EQ(reply.status, 400) << bad;
    EXPECT_TRUE(reply.json()["error"]["param"].get<std::string>().starts_with("messages")) << bad;
  }
}

TEST(chat_api, I09_pictures_are_never_fetched_from_addresses_or_files) {
  TestServer server;
  for (const char* url : {"http://127.0.0.1:1/x", "file:///etc/passwd", "http://169.254.169.254/", "https://example.com/a.png", "/etc/passwd",
                          "ftp://x/y", "data:text/html;base64,AAAA", "data:image/png,plain"}) {
    Json body = with_messages(R"([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": ""}}]}])");
    body["messages"][0]["content"][0]["image_url"]["url"] = url;
    EXPECT_EQ(post(server.port(), kChat, body).status, 400) << url;
  }
}

TEST(chat_api, T05_a_late_system_message_reaches_the_engine_at_its_place) {
  TestServer server;
  EXPECT_EQ(post(server.port(), kChat, with_messages(R"([{"role": "developer", "content": "A"}, {"role": "user", "content": "u"},
    {"role": "assistant", "content": "a"}, {"role": "system", "content": "B"}, {"role": "user", "content": "say:x"}])")).status, 200);
  const Json messages = server.engine.last_request().messages;
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(messages[0], Json::parse(R"({"role": "system", "content": "A"})"));
  EXPECT_EQ(messages[3], Json::parse(R"({"role": "system", "content": "B"})"));
}

TEST(chat_api, T07_thinking_is_switched_the_same_way_everywhere) {
  TestServer server;
  server.engine.script = [](const Request& request) {
    FakeAnswer answer;
    answer.text = request.template_kwargs.value("enable_thinking", false) ? "I think\n</think>\n\nyes" : "yes";
    return answer;
  };
  const auto reasoning = [&](const Json& body) {
    const Json message = post(server.port(), kChat, body).json()["choices"][0]["message"];
    EXPECT_EQ(message["content"], "yes");
    return message.contains("reasoning_content");
  };
  EXPECT_FALSE(reasoning(say("")));
  EXPECT_TRUE(reasoning(say("", R"({"chat_template_kwargs": {"enable_thinking": true}})")));
  EXPECT_FALSE(reasoning(say("", R"({"chat_template_kwargs": {"enable_thinking": false}})")));
  EXPECT_TRUE(reasoning(say("", R"({"reasoning_effort": "high"})")));
  EXPECT_FALSE(reasoning(say("", R"({"reasoning_effort": "none"})")));
  EXPECT_FALSE(reasoning(say(" /no_think", R"({"reasoning_effort": "high"})")));
  EXPECT_TRUE(reasoning(say(" /think")));
  const Reply stream = post(server.port(), kChat, say("", R"({"stream": true, "reasoning_effort": "low"})"));
  EXPECT_EQ(joined(stream, "reasoning_content"), "I think");
  EXPECT_EQ(joined(stream, "content"), "yes");
  EXPECT_EQ(post(server.port(), kChat, say("", R"({"reasoning_effort": "huge"})")).status, 400);
  EXPECT_EQ(post(server.port(), kChat, say("", R"({"chat_template_kwargs": {"enable_thinking": "no"}})")).status, 400);
}

TEST(chat_api, T09_missing_and_null_contents_are_fine_where_agents_send_them) {
  TestServer server;
  const std::string call = R"({"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}})";
  for (const std::string& assistant : {R"("content": null, "tool_calls": [)" + call + "]", R"("content": "", "tool_calls": [)" + call + "]",
                                      R"("tool_calls": [)" + call + "]", std::string(R"("content": [{"type": "text", "text": "hm"}])"),
                                      std::string(R"("content": null)"), R"("content": [], "tool_calls": [)" + call + "]"}) {
    for (const std::string tool : {R"("content": "3")", R"("content": [{"type": "text", "text": "3"}])", R"("content": null)"}) {
      const Reply reply = post(server.port(), kChat, with_messages(R"([{"role": "user", "content": "say:ok"}, {"role": "assistant", )" + assistant +
                                                                   R"(}, {"role": "tool", "tool_call_id": "c1", )" + tool + "}]"));
      EXPECT_EQ(reply.status, 200) << assistant << tool << reply.body;
    }
  }
  EXPECT_EQ(server.engine.last_request().messages[1]["tool_calls"][0]["function"]["arguments"], R"({"a": 1})");
}

TEST(chat_api, tool_calls_stream_with_one_index_and_id) {
  TestServer server;
  server.engine.script = [](const Request&) {
    FakeAnswer answer;
    answer.text = "Sure.\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n</function>\n</tool_call>";
    return answer;
  };
  const Json whole = post(server.port(), kChat, say("", kTools)).json()["choices"][0];
  EXPECT_EQ(whole["finish_reason"], "tool_calls");
  EXPECT_EQ(whole["message"]["content"], "Sure.");
  ASSERT_EQ(whole["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(Json::parse(whole["message"]["tool_calls"][0]["function"]["arguments"].get<std::string>()), Json::parse(R"({"a": 1, "b": 2})"));
  Json streamed = say("", kTools);
  streamed["stream"] = true;
  int ids = 0;
  std::string arguments;
  std::string finish;
  for (const Json& event : post(server.port(), kChat, streamed).json_events()) {
    const Json& choice = event["choices"][0];
    if (choice["finish_reason"].is_string()) finish = choice["finish_reason"].get<std::string>();
    if (!choice["delta"].contains("tool_calls")) continue;
    const Json& call = choice["delta"]["tool_calls"][0];
    EXPECT_EQ(call["index"], 0);
    ids += call.contains("id") ? 1 : 0;
    arguments += call["function"]["arguments"].get<std::string>();
  }
  EXPECT_EQ(ids, 1);
  EXPECT_EQ(arguments, whole["message"]["tool_calls"][0]["function"]["arguments"]);
  EXPECT_EQ(finish, "tool_calls");
}

TEST(chat_api, tool_choice_decides_what_is_told_and_read) {
  TestServer server;
  Json none = say("<tool_call>\n<function=add>\n</function>\n</tool_call>", kTools);
  none["tool_choice"] = "none";
  EXPECT_TRUE(post(server.port(), kChat, none).json()["choices"][0]["message"]["content"].get<std::string>().starts_with("<tool_call>"));
  EXPECT_TRUE(server.engine.last_request().tools.is_null());
  for (const char* bad : {R"("sometimes")", R"({"type": "function", "function": {"name": "nope"}})", R"(5)", R"({"type": "function"})"}) {
    Json body = say("x", kTools);
    body["tool_choice"] = Json::parse(bad);
    EXPECT_EQ(post(server.port(), kChat, body).status, 400) << bad;
  }
  EXPECT_EQ(post(server.port(), kChat, say("x", R"({"tool_choice": "required"})")).status, 400);
  Json two = say("<tool_call>\n<function=add>\n</function>\n</tool_call>\n<tool_call>\n<function=add>\n</function>\n</tool_call>", kTools);
  EXPECT_EQ(post(server.port(), kChat, two).json()["choices"][0]["message"]["tool_calls"].size(), 2u);
  two["parallel_tool_calls"] = false;
  const Json single = post(server.port(), kChat, two).json()["choices"][0];
  EXPECT_EQ(single["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(single["finish_reason"], "tool_calls");
}

TEST(chat_api, several_choices_are_numbered) {
  TestServer server;
  const Json body = post(server.port(), kChat, say("x", R"({"n": 3, "seed": 5})")).json();
  ASSERT_EQ(body["choices"].size(), 3u);
  EXPECT_EQ(body["choices"][2]["index"], 2);
  EXPECT_EQ(body["choices"][2]["message"]["content"], "x");
  EXPECT_EQ(body["usage"]["completion_tokens"], 6);
  EXPECT_EQ(post(server.port(), kChat, say("x", R"({"n": 0})")).status, 400);
  EXPECT_EQ(post(server.port(), kChat, say("x", R"({"n": 1000})")).status, 400);
}

TEST(chat_api, bad_fields_are_named_and_unknown_ones_ignored) {
  TestServer server;
  const auto check = [&](const char* more, const char* param) {
    const Reply reply = post(server.port(), kChat, say("x", more));
    EXPECT_EQ(reply.status, 400) << more;
    EXPECT_EQ(reply.json()["error"]["param"], param) << more;
    EXPECT_EQ(reply.json()["error"]["type"], "invalid_request_error");
  };
  check(R"({"temperature": 2.5})", "temperature");
  check(R"({"temperature": "hot"})", "temperature");
  check(R"({"top_p": -0.1})", "top_p");
  check(R"({"seed": 1.5})", "seed");
  check(R"({"stream": 1})", "stream");
  check(R"({"tools": [{"type": "function"}]})", "tools[0].function");
  check(R"({"tools": [{"type": "function", "function": {"name": "a b"}}]})", "tools[0].function.name");
  check(R"({"response_format": {"type": "yaml"}})", "response_format.type");
  check(R"({"model": 5})", "model");
  EXPECT_EQ(post(server.port(), kChat, say("x", R"({"made_up_field": {"a": 1}, "model": "any name at all"})")).status, 200);
}

TEST(chat_api, a_failure_in_the_middle_is_an_error_event) {
  TestServer server;
  server.engine.script = [](const Request&) {
    FakeAnswer answer;
    answer.fail_after = 3;
    return answer;
  };
  EXPECT_EQ(post(server.port(), kChat, say("")).status, 500);
  const Reply stream = post(server.port(), kChat, say("", R"({"stream": true})"));
  EXPECT_EQ(stream.status, 200);
  EXPECT_TRUE(stream.json_events().back().contains("error"));
  EXPECT_EQ(stream.body.find("[DONE]"), std::string::npos);
}

TEST(chat_api, C08_generation_to_the_end_of_the_context_stops_with_length) {
  TestServer server({}, 300);
  server.engine.script = [](const Request&) {
    FakeAnswer answer;
    answer.endless = true;
    return answer;
  };
  const Json body = post(server.port(), kChat, say("")).json();
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_LE(body["usage"]["total_tokens"], 300);
}

}  // namespace
}  // namespace heirloom::test
