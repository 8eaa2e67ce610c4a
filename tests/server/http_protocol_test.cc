// The transport: keep-alive, limits, stalled and vanished clients, hostile bodies, origins and keys.
#include <gtest/gtest.h>

#include <thread>

#include "server/test_server.h"

namespace heirloom::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::string chat(const std::string& say, const std::string& more = "") {
  return R"({"messages": [{"role": "user", "content": "say:)" + say + R"("}])" + more + "}";
}

TEST(http, a_connection_serves_many_requests_and_pipelined_ones_in_order) {
  TestServer server;
  Client client(server.port());
  for (const std::string word : {"one", "two", "three"}) client.request("POST", "/v1/chat/completions", chat(word));
  for (const std::string word : {"one", "two", "three"}) {
    EXPECT_EQ(client.read_reply().json()["choices"][0]["message"]["content"], word);
  }
  client.request("GET", "/health");
  EXPECT_EQ(client.read_reply().status, 200);
  EXPECT_EQ(server.transport().counters().accepted, 1u);
}

TEST(http, head_and_trailing_slash_are_understood) {
  TestServer server;
  Client client(server.port());
  client.request("HEAD", "/v1/models/");
  const Reply head = client.read_reply(seconds(5), true);
  EXPECT_EQ(head.status, 200);
  EXPECT_TRUE(head.body.empty());
  client.request("GET", "/v1/models/");
  const Reply list = client.read_reply();
  EXPECT_EQ(list.json()["data"][0]["id"], "fake");
  EXPECT_EQ(list.json()["data"][0]["context_length"], 4096);
}

TEST(http, unknown_paths_and_methods_have_error_objects) {
  TestServer server;
  EXPECT_EQ(get(server.port(), "/v1/nothing").status, 404);
  const Reply wrong = get(server.port(), "/v1/chat/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.header("allow"), "POST");
  EXPECT_TRUE(wrong.json().at("error").contains("message"));
  EXPECT_EQ(get(server.port(), "/v1/messages").json().at("type"), "error");
  Client client(server.port());
  for (const auto& [path, methods] : {std::pair<std::string, std::string>{"/v1/responses", "POST, OPTIONS"}, {"/v1/models/x", "GET, HEAD, OPTIONS"}}) {
    client.request("OPTIONS", path);
    const Reply reply = client.read_reply();
    EXPECT_EQ(reply.status, 204);
    EXPECT_EQ(reply.header("allow"), methods);
  }
  client.request("OPTIONS", "/v1/nothing");
  EXPECT_EQ(client.read_reply().status, 404);
}

TEST(http, A17_origins_are_local_by_default_and_never_wildcard_with_credentials) {
  TestServer server;
  Client client(server.port());
  client.request("OPTIONS", "/v1/chat/completions", "", "Origin: http://localhost:3000\r\nAccess-Control-Request-Method: POST\r\n"
                                                        "Access-Control-Request-Headers: authorization,content-type\r\n");
  const Reply local = client.read_reply();
  EXPECT_EQ(local.status, 204);
  EXPECT_EQ(local.header("access-control-allow-origin"), "http://localhost:3000");
  EXPECT_NE(local.header("access-control-allow-headers").find("Authorization"), std::string::npos);
  EXPECT_EQ(local.header("access-control-allow-credentials"), "");
  for (const std::string origin : {"https://evil.example", "http://127.0.0.1.evil.example", "null", "http://localhost.evil.example"}) {
    const Reply foreign = get(server.port(), "/v1/models", "Origin: " + origin + "\r\n");
    EXPECT_EQ(foreign.status, 403) << origin;
    EXPECT_EQ(foreign.header("access-control-allow-origin"), "") << origin;
  }
  server::ServerOptions open;
  open.cors_origins = {"*"};
  TestServer anyone(open);
  const Reply any = get(anyone.port(), "/v1/models", "Origin: https://evil.example\r\n");
  EXPECT_EQ(any.header("access-control-allow-origin"), "*");
  EXPECT_EQ(any.header("access-control-allow-credentials"), "");
}

TEST(http, A16_keys_open_the_api_by_either_header) {
  server::ServerOptions options;
  options.api_keys = {"secret-one", "secret-two"};
  TestServer server(options);
  EXPECT_EQ(get(server.port(), "/v1/models").status, 401);
  EXPECT_EQ(get(server.port(), "/v1/models", "Authorization: Bearer secret-on\r\n").status, 401);
  EXPECT_EQ(get(server.port(), "/v1/models", "Authorization: Bearer secret-one\r\n").status, 200);
  EXPECT_EQ(get(server.port(), "/v1/models", "x-api-key: secret-two\r\n").status, 200);
  EXPECT_EQ(get(server.port(), "/health").status, 200);
  EXPECT_EQ(get(server.port(), "/metrics").status, 401);
  // The body of a refused request is not waited for.
  Client client(server.port());
  client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 401);
}

TEST(http, A18_large_bodies_are_refused_by_their_length_and_while_they_come) {
  server::ServerOptions options;
  options.http.body_bytes = 100'000;
  TestServer server(options);
  Client declared(server.port());
  declared.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 200000000\r\n\r\n");
  EXPECT_EQ(declared.read_reply().status, 413);
  Client chunked(server.port());
  chunked.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string piece = "4000\r\n" + std::string(0x4000, ' ') + "\r\n";
  for (int i = 0; i < 20; ++i) chunked.send(piece);
  EXPECT_EQ(chunked.read_reply().status, 413);
  EXPECT_EQ(post(server.port(), "/v1/chat/completions", Json::parse(chat("ok"))).status, 200);
}

TEST(http, A18_hostile_json_is_400_and_the_server_goes_on) {
  TestServer server;
  const auto status = [&](const std::string& body, const std::string& headers = "") {
    Client client(server.port());
    client.request("POST", "/v1/chat/completions", body, headers);
    return client.read_reply().status;
  };
  EXPECT_EQ(status(std::string(100'000, '[')), 400);
  EXPECT_EQ(status(R"({"messages":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}"), 400);
  EXPECT_EQ(status("{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\xfe\"}]}"), 400);
  EXPECT_EQ(status(R"({"messages": [{"role": "user", "content": "\ud800"}]})"), 400);
  EXPECT_EQ(status(R"({"messages": [{"role": "user", "content": "x"}], "temperature": NaN})"), 400);
  EXPECT_EQ(status(""), 400);
  EXPECT_EQ(status("[]"), 400);
  EXPECT_EQ(status("null"), 400);
  EXPECT_EQ(status("\x1f\x8b\x08 not json", "Content-Encoding: gzip\r\n"), 415);
  EXPECT_EQ(status(R"({"messages": [{"role": "robot", "content": "a", "role": "user", "content": "say:b"}]})"), 200);  // last one counts
  EXPECT_EQ(status(chat("fine")), 200);
}

TEST(http, malformed_requests_are_400_or_closed) {
  TestServer server;
  for (const std::string text : {"GARBAGE\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET /x HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
                                 "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n"}) {
    Client client(server.port());
    client.send(text);
    const Reply reply = client.read_reply();
    EXPECT_TRUE(reply.status == 400 || reply.status == 0) << text << reply.status;
  }
  Client client(server.port());
  client.send("GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + std::string(100'000, 'a') + "\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 431);
  EXPECT_EQ(get(server.port(), "/health").status, 200);
}

TEST(http, stalled_heads_bodies_and_readers_are_closed) {
  server::ServerOptions options;
  options.http.stall = milliseconds(300);
  options.http.queue_bytes = 1 << 30;
  TestServer server(options, 10'000'000);
  Client silent(server.port());
  Client half_head(server.port());
  half_head.send("GET /health HT");
  Client half_body(server.port());
  half_body.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"me");
  EXPECT_TRUE(silent.closed_within(seconds(5)));
  EXPECT_TRUE(half_head.closed_within(seconds(5)));
  EXPECT_TRUE(half_body.closed_within(seconds(5)));
  EXPECT_EQ(server.engine.running(), 0);
  server.engine.script = [](const Request&) {
    FakeAnswer answer;
    answer.endless = true;
    return answer;
  };
  Client deaf(server.port());
  deaf.request("POST", "/v1/chat/completions", chat("", R"(, "stream": true)"));
  EXPECT_TRUE(TestServer::eventually([&] { return server.engine.cancelled() == 1; }, seconds(60)));
  EXPECT_GE(server.transport().counters().timeouts, 1u);
}

TEST(http, a_reader_that_falls_behind_is_cut_off_and_its_request_cancelled) {
  server::ServerOptions options;
  options.http.queue_bytes = 50'000;
  TestServer server(options, 10'000'000);
  server.engine.script = [](const Request&) {
    FakeAnswer answer;
    answer.endless = true;
    return answer;
  };
  Client slow(server.port());
  slow.request("POST", "/v1/chat/completions", chat("", R"(, "stream": true)"));
  EXPECT_TRUE(TestServer::eventually([&] { return server.engine.cancelled() == 1; }, seconds(60)));
  EXPECT_EQ(server.transport().counters().slow_readers, 1u);
}

TEST(http, A05_a_client_that_leaves_frees_its_slot_at_once) {
  TestServer server;
  for (const bool stream : {false, true}) {
    for (const bool during_prefill : {true, false}) {
      for (const bool half_open : {false, true}) {
        server.engine.script = [&](const Request&) {
          FakeAnswer answer;
          answer.endless = true;
          if (during_prefill) answer.prefill = seconds(60);
          answer.token_delay = milliseconds(5);
          return answer;
        };
        const int before = server.engine.cancelled();
        Client client(server.port());
        client.request("POST", "/v1/chat/completions", chat("", stream ? R"(, "stream": true)" : ""));
        ASSERT_TRUE(TestServer::eventually([&] { return server.engine.running() == 1; }));
        if (!during_prefill) std::this_thread::sleep_for(milliseconds(30));
        if (half_open) {
          client.half_close();
        } else {
          client.close();
        }
        EXPECT_TRUE(TestServer::eventually([&] { return server.engine.cancelled() == before + 1; }, seconds(1)))
            << stream << during_prefill << half_open;
      }
    }
  }
  server.engine.script = nullptr;
  EXPECT_NE(get(server.port(), "/metrics").body.find("heirloom_client_cancels_total 8"), std::string::npos);
}

TEST(http, more_than_a_thousand_idle_connections_do_not_stop_the_next_request) {
  TestServer server;
  std::vector<std::unique_ptr<Client>> idle;
  for (int i = 0; i < 1100; ++i) {
    idle.push_back(std::make_unique<Client>(server.port()));
    if (i % 2 == 0) idle.back()->send("GET /hea");
  }
  EXPECT_EQ(post(server.port(), "/v1/chat/completions", Json::parse(chat("still here"))).status, 200);
  EXPECT_TRUE(TestServer::eventually([&] { return server.transport().counters().connections >= 1100; }));
}

TEST(http, connections_and_waiting_requests_have_a_limit) {
  server::ServerOptions options;
  options.http.connections = 2;
  options.max_waiting = 1;
  TestServer server(options);
  server.engine.script = [](const Request&) {
    FakeAnswer answer;
    answer.prefill = seconds(60);
    return answer;
  };
  Client first(server.port());
  first.request("POST", "/v1/chat/completions", chat("a"));
  ASSERT_TRUE(TestServer::eventually([&] { return server.engine.running() == 1; }));
  Client second(server.port());
  second.request("POST", "/v1/chat/completions", chat("b"));
  EXPECT_EQ(second.read_reply().status, 503);
  Client third(server.port());
  EXPECT_EQ(third.read_reply().status, 503);
}

TEST(http, old_clients_get_an_answer_that_ends_with_the_connection) {
  TestServer server;
  Client client(server.port());
  const std::string body = chat("old", R"(, "stream": true)");
  client.send("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  const Reply reply = client.read_reply();
  EXPECT_EQ(reply.header("transfer-encoding"), "");
  EXPECT_NE(reply.body.find("[DONE]"), std::string::npos);
}

TEST(http, draining_finishes_running_requests_and_reports_the_others) {
  for (const bool endless : {false, true}) {
    TestServer server;
    server.engine.script = [&](const Request&) {
      FakeAnswer answer;
      answer.text = "finished";
      answer.endless = endless;
      answer.token_delay = milliseconds(20);
      return answer;
    };
    Client client(server.port());
    client.request("POST", "/v1/chat/completions", chat(""));
    Client idle(server.port());
    ASSERT_TRUE(TestServer::eventually([&] { return server.engine.running() == 1; }));
    EXPECT_EQ(server.transport().drain(endless ? milliseconds(100) : milliseconds(10'000)), endless ? 1 : 0);
    EXPECT_TRUE(idle.closed_within(seconds(2)));
    const Reply reply = client.read_reply();
    EXPECT_EQ(reply.status, endless ? 0 : 200);
  }
}

TEST(http, the_page_is_served_with_a_strict_policy) {
  TestServer server;
  const Reply page = get(server.port(), "/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.header("content-type"), "text/html; charset=utf-8");
  const std::string policy = page.header("content-security-policy");
  EXPECT_NE(policy.find("default-src 'none'"), std::string::npos);
  EXPECT_EQ(policy.find("unsafe"), std::string::npos);
  EXPECT_EQ(page.body.find("http://"), std::string::npos);
  EXPECT_EQ(page.body.find("https://"), std::string::npos);
}

}  // namespace
}  // namespace heirloom::test
