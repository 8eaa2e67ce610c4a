// Chat templates: parity with the reference's renders, trust of segments, request messages that break other servers.
#include "text/chat_template.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "text/messages.h"
#include "text/text_support.h"

namespace heirloom::text {
namespace {

using nlohmann::ordered_json;

ChatInput input_of(const ordered_json& chat) {
  ChatInput input;
  input.messages = chat["messages"];
  if (chat.contains("tools")) input.tools = chat["tools"];
  if (chat.contains("kwargs")) input.kwargs = chat["kwargs"];
  input.add_generation_prompt = chat.value("add_generation_prompt", true);
  return input;
}

TEST(chat_template, renders_the_published_templates_byte_for_byte) {
  const auto file = test::golden("chat/rendered.json");
  HEIRLOOM_REQUIRE(file);
  const auto golden = test::read_json(file);
  const std::pair<const char*, const char*> templates[] = {
      {"qwen3.5", "Qwen3.5-4B.jinja"}, {"qwen3.6-variant", "qwen3.6-variant.jinja"}, {"minicpm-v-4.6", "MiniCPM-V-4_6.jinja"}};
  for (const auto& [name, source] : templates) {
    const auto path = test::golden(std::string("chat/") + source);
    HEIRLOOM_REQUIRE(path);
    const ChatTemplate chat(test::read_text(path));
    const auto& rows = golden["templates"][name]["rows"];
    ASSERT_EQ(rows.size(), golden["inputs"].size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      SCOPED_TRACE(std::string(name) + ": " + rows[i]["name"].get<std::string>());
      const ChatInput input = input_of(golden["inputs"][i]);
      if (rows[i].contains("error")) {
        EXPECT_THROW(chat.render(input), Error);
        continue;
      }
      EXPECT_EQ(chat.render(input), rows[i]["rendered"].get<std::string>());
      EXPECT_EQ(join_segments(chat.render_segments(input)), rows[i]["rendered"].get<std::string>());
    }
  }
}

}  // namespace
}  // namespace heirloom::text
