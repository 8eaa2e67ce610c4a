// Real clients, unmodified, in Python and in a browser (scripts/make_test_venv.sh); skipped where they are not installed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "server/test_server.h"
#include "support/test_tools.h"

namespace heirloom::test {
namespace {

std::filesystem::path client_python() { return test_tool("test-venv/bin/python"); }

/// A model that does what the checks ask it for.
FakeAnswer obliging(const Request& request) {
  FakeAnswer answer;
  answer.text = "Hello there, how are you today?";
  const Json& last = request.messages.is_array() ? request.messages.back() : request.messages;
  if (last.is_object() && last.at("content") == "long") answer.endless = true;
  if (request.tools.is_array() && last.at("role") != "tool") {
    answer.text = "<tool_call>\n<function=add>\n<parameter=a>\n2\n</parameter>\n<parameter=b>\n3\n</parameter>\n</function>\n</tool_call>";
  } else if (request.constraint) {
    answer.text = request.messages.dump().find("ball") != std::string::npos ? R"({"color": "red", "sure": true})" : R"({"color": "blue", "count": 3})";
  } else if (!request.images.empty()) {
    answer.text = "It is **red**.\n\n```python\nprint('red')\n```\n\n| color | count |\n|---|---|\n| red | 1 |";
  }
  answer.token_delay = std::chrono::milliseconds(request.images.empty() ? 1 : 10);  // the page's test wants to see it grow
  return answer;
}

class clients : public testing::TestWithParam<const char*> {};

TEST_P(clients, work_unmodified) {
  const auto python = client_python();
  if (python.empty()) GTEST_SKIP() << "the client environment is not installed (scripts/make_test_venv.sh)";
  TestServer server;
  server.engine.script = obliging;
  const std::string command = python.string() + " " + HEIRLOOM_SOURCE_DIR "/tests/server/clients/client_checks.py http://127.0.0.1:" +
                              std::to_string(server.port()) + " " + GetParam() + " >&2";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

INSTANTIATE_TEST_SUITE_P(python, clients,
                         testing::Values("openai_chat openai_stream openai_legacy openai_errors", "openai_tools openai_parse schema_50",
                                         "openai_images openai_embeddings openai_responses", "anthropic_messages", "litellm_chat", "langchain_chat"),
                         [](const auto& tested) {
                           const std::string name = tested.param;
                           return name.substr(0, name.find(' '));
                         });

TEST(load_tool, counts_no_failure_among_many_users) {
  const auto python = client_python();
  if (python.empty()) GTEST_SKIP() << "the client environment is not installed (scripts/make_test_venv.sh)";
  TestServer server;
  server.engine.script = obliging;
  const std::string command = python.string() + " -m locust --headless --only-summary --users 32 --spawn-rate 32 --run-time 5s --stop-timeout 10" +
                              " --locustfile " HEIRLOOM_SOURCE_DIR "/tests/server/clients/load_users.py --host http://127.0.0.1:" +
                              std::to_string(server.port()) + " >&2";
  EXPECT_EQ(std::system(command.c_str()), 0);  // 1 when any request failed
}

/// Runs the page's checks against the server at `port`; more arguments as browser_checks.py takes them.
void check_page(int port, const std::string& more) {
  const std::string command = client_python().string() + " " + HEIRLOOM_SOURCE_DIR "/tests/server/clients/browser_checks.py http://127.0.0.1:" +
                              std::to_string(port) + " " + HEIRLOOM_BINARY_DIR + "/screenshots" + more + " >&2";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

bool have_browser() { return !client_python().empty() && std::filesystem::exists("/usr/bin/chromium"); }

TEST(page, works_in_a_browser) {
  if (!have_browser()) GTEST_SKIP() << "the client environment or chromium is not installed";
  TestServer server({}, 10'000'000);  // what is to be stopped goes on until it is stopped
  server.engine.script = obliging;
  check_page(server.port(), "");
}

TEST(page, answers_a_dropped_picture_rightly) {
  if (!have_browser()) GTEST_SKIP() << "the client environment or chromium is not installed";
  EngineOptions engine_options;
  engine_options.model = HEIRLOOM_SOURCE_DIR "/models/demo-vl.gguf";
  engine_options.device = "cpu";
  engine_options.parallel = 2;
  const auto engine = Engine::load(engine_options);
  const server::ServerOptions options;
  RunningServer server(*engine, options);
  check_page(server.port(), "/real " HEIRLOOM_SOURCE_DIR "/examples/shapes.png 'A purple triangle and a pink triangle on a yellow background.'");
}

TEST(clients_schemathesis, finds_nothing_in_the_served_openapi_document) {
  const auto python = client_python();
  if (python.empty()) GTEST_SKIP() << "the client environment is not installed (scripts/make_test_venv.sh)";
  TestServer server;
  server.engine.script = obliging;
  const std::string command = HEIRLOOM_SOURCE_DIR "/scripts/fuzz_openapi.sh http://127.0.0.1:" + std::to_string(server.port()) + " 10 >&2";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace heirloom::test
