// The whole engine on the trained demo checkpoints beside the checkout, against the reference implementation's answers.
#include "heirloom/engine.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/mapped_file.h"
#include "support/golden.h"

namespace heirloom::test {
namespace {

EngineOptions options_for(const std::filesystem::path& model) {
  EngineOptions options;
  options.model = model.string();
  options.device = "cpu";
  options.parallel = 4;
  options.context_tokens = 4096;
  return options;
}

std::vector<Json> eval_items(const std::filesystem::path& file, std::size_t count) {
  std::ifstream stream(file);
  std::vector<Json> items;
  for (std::string line; items.size() < count && std::getline(stream, line);) items.push_back(Json::parse(line));
  return items;
}

Request request_for(const Json& item, const std::filesystem::path& folder) {
  Request request;
  request.messages = item["messages"];
  if (item.contains("tools")) request.tools = item["tools"];
  if (item.contains("enable_thinking")) request.template_kwargs = {{"enable_thinking", item["enable_thinking"]}};
  if (item.contains("image")) {
    const MappedFile file(folder / item["image"].get<std::string>());
    request.images.push_back({{file.bytes().begin(), file.bytes().end()}, item["image"].get<std::string>()});
  }
  return request;
}

void answers_match(const std::string& model, const std::vector<std::string>& tasks, std::size_t each) {
  const auto folder = shared("models/" + model);
  const auto eval = shared("eval/" + model);
  HEIRLOOM_REQUIRE(folder);
  HEIRLOOM_REQUIRE(eval);
  const auto engine = Engine::load(options_for(folder));
  for (const std::string& task : tasks) {
    std::vector<std::shared_ptr<RequestHandle>> handles;
    const std::vector<Json> items = eval_items(eval / (task + ".jsonl"), each);
    ASSERT_FALSE(items.empty()) << task;
    for (const Json& item : items) handles.push_back(engine->submit(request_for(item, eval), {}, {}));
    for (std::size_t i = 0; i < items.size(); ++i) {
      const RequestResult& result = handles[i]->wait();
      EXPECT_EQ(result.prompt_tokens, items[i]["prompt_tokens"].get<std::int64_t>()) << items[i]["id"];
      EXPECT_EQ(result.token_ids, items[i]["hf"]["ids"].get<std::vector<std::int32_t>>()) << items[i]["id"] << result.text;
    }
  }
}

TEST(engine, demo_vl_answers_as_the_reference_does) {
  answers_match("demo-vl", {"add", "tool_call", "think", "followup", "color_shape", "slice_read"}, 4);
}

TEST(engine, demo_moe_answers_as_the_reference_does) { answers_match("demo-moe", {"add", "tool_call", "describe"}, 4); }

}  // namespace
}  // namespace heirloom::test
