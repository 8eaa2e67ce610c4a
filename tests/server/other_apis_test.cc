// /v1/completions, /v1/responses, /v1/embeddings, /v1/messages, /metrics.
#include <gtest/gtest.h>

#include <cstring>

#include "server/base64.h"
#include "server/test_server.h"

namespace heirloom::test {
namespace {

Json J(const std::string& text) { return Json::parse(text); }

std::vector<std::string> types(const Reply& reply) {
  std::vector<std::string> result;
  for (const Json& event : reply.json_events()) result.push_back(event["type"].get<std::string>());
  return result;
}

const char* const kCallText = "Sure.\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>";

void answer_with(TestServer& server, const std::string& text) {
  server.engine.script = [text](const Request&) {
    FakeAnswer answer;
    answer.text = text;
    return answer;
  };
}

TEST(completions, take_every_form_of_prompt) {
  TestServer server;
  for (const char* prompt : {R"("abc")", R"(["abc"])", R"([97, 98.0, 99])", R"([[97, 98], [99]])"}) {
    const Reply reply = post(server.port(), "/v1/completions", J(std::string(R"({"max_tokens": 50, "prompt": )") + prompt + "}"));
    ASSERT_EQ(reply.status, 200) << prompt << reply.body;
    EXPECT_EQ(reply.json()["choices"][0]["text"], "Hello there.");
    EXPECT_EQ(reply.json()["usage"]["prompt_tokens"], 3);
  }
  for (const char* bad : {R"("")", R"([])", R"([""])", R"([99999])", R"([-1])", R"(5)", R"([[1], "a", []])", R"(null)"}) {
    EXPECT_EQ(post(server.port(), "/v1/completions", J(std::string(R"({"prompt": )") + bad + "}")).status, 400) << bad;
  }
}

TEST(completions, A11_logprobs_and_echo) {
  TestServer server;
  const Json body = post(server.port(), "/v1/completions", J(R"({"prompt": "x", "logprobs": 3, "max_tokens": 4})")).json();
  const Json& logprobs = body["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], J(R"(["H", "e", "l", "l"])"));
  EXPECT_EQ(logprobs["text_offset"], J("[0, 1, 2, 3]"));
  EXPECT_EQ(logprobs["top_logprobs"][0].size(), 3u);
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(post(server.port(), "/v1/completions", J(R"({"prompt": "x", "echo": true, "max_tokens": 2})")).json()["choices"][0]["text"], "xHe");
  std::string text;
  const Reply stream = post(server.port(), "/v1/completions", J(R"({"prompt": ["x", "y"], "n": 2, "stream": true, "max_tokens": 3, "stream_options": {"include_usage": true}})"));
  for (const Json& event : stream.json_events()) {
    for (const Json& choice : event["choices"]) {
      if (choice["index"] == 3) text += choice["text"].get<std::string>();
    }
  }
  EXPECT_EQ(text, "Hel");
  EXPECT_EQ(stream.events().back(), "[DONE]");
}

TEST(embeddings, A23_shapes_and_refusals) {
  TestServer server({}, 64);
  const auto call = [&](const std::string& body) { return post(server.port(), "/v1/embeddings", J(body)); };
  EXPECT_EQ(call(R"({"input": "abc"})").json()["data"][0]["embedding"].size(), 8u);
  EXPECT_EQ(call(R"({"input": ["a", "b", "c"]})").json()["data"].size(), 3u);
  EXPECT_EQ(call(R"({"input": [97, 98]})").json()["usage"]["prompt_tokens"], 2);
  const auto bytes = server::base64_decode(call(R"({"input": "abc", "encoding_format": "base64"})").json()["data"][0]["embedding"].get<std::string>());
  ASSERT_TRUE(bytes && bytes->size() == 32);
  float first = 0;
  std::memcpy(&first, bytes->data(), 4);
  EXPECT_EQ(first, 3.0f);
  EXPECT_EQ(call(R"({"input": ""})").status, 400);
  EXPECT_EQ(call(R"({"input": ["a", ""]})").status, 400);
  const Reply longer = call(R"({"input": ")" + std::string(100, 'x') + R"("})");
  EXPECT_EQ(longer.status, 400);
  EXPECT_EQ(longer.json()["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(call(R"({"input": "a", "dimensions": 4})").status, 400);
}

TEST(responses_api, items_in_and_items_out) {
  TestServer server;
  answer_with(server, kCallText);
  const std::string tools = R"("tools": [{"type": "function", "name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}])";
  const Json body = post(server.port(), "/v1/responses", J(R"({"input": "hi", "instructions": "be brief", )" + tools + "}")).json();
  EXPECT_EQ(body["status"], "completed");
  ASSERT_EQ(body["output"].size(), 2u);
  EXPECT_EQ(body["output"][0]["content"][0]["text"], "Sure.");
  EXPECT_EQ(body["output"][1]["name"], "add");
  EXPECT_EQ(J(body["output"][1]["arguments"].get<std::string>()), J(R"({"a": 1})"));
  EXPECT_EQ(server.engine.last_request().messages[0]["content"], "be brief");
  Json next = J("{" + tools + "}");
  next["input"] = J(R"([{"role": "user", "content": [{"type": "input_text", "text": "hi"},
    {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgoAAAA="}]}])");
  for (const Json& item : body["output"]) next["input"].push_back(item);
  next["input"].push_back({{"type", "function_call_output"}, {"call_id", body["output"][1]["call_id"]}, {"output", "1"}});
  EXPECT_EQ(post(server.port(), "/v1/responses", next).status, 200);
  const Json messages = server.engine.last_request().messages;
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[1]["content"], "Sure.");
  EXPECT_EQ(J(messages[1]["tool_calls"][0]["function"]["arguments"].get<std::string>()), J(R"({"a": 1})"));
  EXPECT_EQ(messages[2]["role"], "tool");
}

TEST(responses_api, streams_the_events_that_clients_wait_for) {
  TestServer server;
  server.engine.script = [](const Request&) {
    FakeAnswer answer;
    answer.text = "hm\n</think>\n\nok";
    return answer;
  };
  const Reply reply = post(server.port(), "/v1/responses", J(R"({"input": "x", "stream": true, "reasoning": {"effort": "low"}})"));
  const auto seen = types(reply);
  EXPECT_EQ(seen.front(), "response.created");
  EXPECT_EQ(seen.back(), "response.completed");
  for (const char* type : {"response.output_item.added", "response.content_part.added", "response.reasoning_text.delta", "response.output_text.delta",
                           "response.output_text.done", "response.output_item.done"}) {
    EXPECT_NE(std::find(seen.begin(), seen.end(), type), seen.end()) << type;
  }
  std::int64_t number = 0;
  for (const Json& event : reply.json_events()) EXPECT_EQ(event["sequence_number"], number++);
  EXPECT_EQ(reply.json_events().back()["response"]["output"][1]["content"][0]["text"], "ok");
}

TEST(responses_api, what_needs_a_store_is_refused) {
  TestServer server;
  for (const char* bad : {R"({"input": "x", "previous_response_id": "r"})", R"({"input": "x", "background": true})", R"({"input": []})", R"({"input": 5})",
                          R"({"input": [{"type": "item_reference", "id": "x"}]})", R"({"input": "x", "tools": [{"type": "web_search"}]})",
                          R"({"input": "x", "truncation": "auto"})", R"({})"}) {
    EXPECT_EQ(post(server.port(), "/v1/responses", J(bad)).status, 400) << bad;
  }
}

TEST(anthropic_api, messages_and_their_stream) {
  TestServer server;
  answer_with(server, kCallText);
  const Json request = J(R"({"max_tokens": 500, "system": [{"type": "text", "text": "S1"}, {"type": "text", "text": "S2", "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgoAAAA="}},
    {"type": "text", "text": "hi"}]}], "tools": [{"name": "add", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}]})");
  const Json body = post(server.port(), "/v1/messages", request, "anthropic-version: 2023-06-01\r\n").json();
  EXPECT_EQ(body["stop_reason"], "tool_use");
  EXPECT_EQ(body["content"][0], J(R"({"type": "text", "text": "Sure."})"));
  EXPECT_EQ(body["content"][1]["input"], J(R"({"a": 1})"));
  EXPECT_TRUE(body["content"][1]["id"].get<std::string>().starts_with("toolu_"));
  EXPECT_EQ(server.engine.last_request().messages[0]["content"], "S1\nS2");
  EXPECT_EQ(server.engine.last_request().images.size(), 1u);
  Json streamed = request;
  streamed["stream"] = true;
  const auto seen = types(post(server.port(), "/v1/messages", streamed));
  EXPECT_EQ(seen.front(), "message_start");
  EXPECT_EQ(seen[1], "ping");
  EXPECT_EQ(seen[seen.size() - 2], "message_delta");
  EXPECT_EQ(seen.back(), "message_stop");
  Json reply = request;
  reply["messages"].push_back({{"role", "assistant"}, {"content", body["content"]}});
  reply["messages"].push_back({{"role", "user"}, {"content", J(R"([{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "1"}]},
    {"type": "text", "text": "and?"}])")}});
  EXPECT_EQ(post(server.port(), "/v1/messages", reply).status, 200);
  const Json messages = server.engine.last_request().messages;
  EXPECT_EQ(messages[3]["role"], "tool");
  EXPECT_EQ(messages[3]["content"], "1");
  EXPECT_EQ(messages[4]["content"], "and?");
  EXPECT_GT(post(server.port(), "/v1/messages/count_tokens", request).json()["input_tokens"].get<int>(), 10);
}

TEST(anthropic_api, thinking_stop_sequences_and_errors) {
  TestServer server;
  answer_with(server, "hm\n</think>\n\nyes###no");
  const Json body = post(server.port(), "/v1/messages", J(R"({"max_tokens": 100, "stop_sequences": ["###"], "thinking": {"type": "enabled", "budget_tokens": 1024},
    "messages": [{"role": "user", "content": "x"}]})")).json();
  EXPECT_EQ(body["content"][0]["thinking"], "hm");
  EXPECT_EQ(body["content"][1]["text"], "yes");
  EXPECT_EQ(body["stop_reason"], "stop_sequence");
  EXPECT_EQ(body["stop_sequence"], "###");
  const Reply bad = post(server.port(), "/v1/messages", J(R"({"messages": [{"role": "user", "content": "x"}]})"));
  EXPECT_EQ(bad.status, 400);
  EXPECT_EQ(bad.json()["type"], "error");
  EXPECT_EQ(bad.json()["error"]["type"], "invalid_request_error");
  EXPECT_EQ(post(server.port(), "/v1/messages", J(R"({"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "document"}]}]})")).status, 400);
}

TEST(all_apis, T07_thinking_is_switched_the_same_way) {
  TestServer server;
  server.engine.script = [](const Request& request) {
    FakeAnswer answer;
    answer.text = request.template_kwargs.value("enable_thinking", false) ? "I think\n</think>\n\nyes" : "yes";
    return answer;
  };
  struct Case {
    std::string say, more;
    bool thinks;
  };
  const std::vector<Case> cases{{"x", "{}", false},
                                {"x", R"({"chat_template_kwargs": {"enable_thinking": true}})", true},
                                {"x", R"({"chat_template_kwargs": {"enable_thinking": false}})", false},
                                {"x /think", "{}", true},
                                {"x /no_think", R"({"chat_template_kwargs": {"enable_thinking": true}})", false}};
  for (const Case& one : cases) {
    for (const bool stream : {false, true}) {
      for (const auto& [path, mark] : {std::pair<std::string, std::string>{"/v1/chat/completions", "\"reasoning_content\""},
                                       {"/v1/responses", "\"type\":\"reasoning\""}, {"/v1/messages", "\"type\":\"thinking\""}}) {
        Json body = path == "/v1/responses" ? Json{{"input", one.say}} : Json{{"messages", Json::array({{{"role", "user"}, {"content", one.say}}})}};
        if (path == "/v1/messages") body["max_tokens"] = 100;
        body.update(J(one.more));
        body["stream"] = stream;
        const Reply reply = post(server.port(), path, body);
        ASSERT_EQ(reply.status, 200) << path << reply.body;
        EXPECT_TRUE(stream || reply.body.find("\"yes\"") != std::string::npos) << path << one.say << one.more;
        EXPECT_EQ(reply.body.find(mark) != std::string::npos, one.thinks) << path << one.say << one.more << stream << reply.body;
        EXPECT_EQ(reply.body.find("</think"), std::string::npos) << path;
      }
    }
  }
}

TEST(all_apis, P03_P08_long_and_misplaced_calls_come_out_whole_and_are_counted) {
  TestServer server({}, 100'000);
  std::string text;
  for (int i = 0; text.size() < 12'000; ++i) text += "line " + std::to_string(i) + " \"quoted\" \\ <parameter>\n";
  answer_with(server, "I need it.\n<tool_call>\n<function=add>\n<parameter=s>\n" + text + "\n</parameter>\n</function>\n</tool_call>\n</think>\n\nDone.");
  Json body = J(R"({"messages": [{"role": "user", "content": "x"}], "reasoning_effort": "high", "tools": [{"type": "function", "function":
    {"name": "add", "parameters": {"type": "object", "properties": {"s": {"type": "string"}}}}}]})");
  const Json whole = post(server.port(), "/v1/chat/completions", body).json()["choices"][0];
  EXPECT_EQ(whole["finish_reason"], "tool_calls");
  EXPECT_EQ(whole["message"]["reasoning_content"], "I need it.");
  EXPECT_EQ(whole["message"]["content"], "Done.");
  const std::string arguments = whole["message"]["tool_calls"][0]["function"]["arguments"].get<std::string>();
  EXPECT_EQ(J(arguments)["s"].get<std::string>(), text);
  body["stream"] = true;
  std::string joined;
  int ids = 0;
  for (const Json& event : post(server.port(), "/v1/chat/completions", body).json_events()) {
    for (const Json& call : event["choices"][0]["delta"].value("tool_calls", Json::array())) {
      EXPECT_EQ(call["index"], 0);
      ids += call.contains("id") ? 1 : 0;
      joined += call["function"]["arguments"].get<std::string>();
    }
  }
  EXPECT_TRUE(joined == arguments);
  EXPECT_EQ(ids, 1);
  EXPECT_NE(get(server.port(), "/metrics").body.find("heirloom_tool_calls_in_reasoning_total 2"), std::string::npos);
}

TEST(metrics, count_what_happened_in_prometheus_text) {
  TestServer server;
  post(server.port(), "/v1/chat/completions", J(R"({"messages": [{"role": "user", "content": "x"}]})"));
  const Reply reply = get(server.port(), "/metrics");
  EXPECT_EQ(reply.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  for (const char* line : {"heirloom_requests_total 1", "heirloom_http_requests_total{path=\"/v1/chat/completions\",status=\"200\"} 1",
                           "heirloom_time_to_first_token_seconds_count 1", "heirloom_slots_total 4"}) {
    EXPECT_NE(reply.body.find(line), std::string::npos) << line << "\n" << reply.body;
  }
}

}  // namespace
}  // namespace heirloom::test
