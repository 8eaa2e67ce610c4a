// The published vocabulary against the golden kit's ids, texts and streamed pieces.
#include <gtest/gtest.h>

#include "text/detokenizer.h"
#include "text/text_support.h"

namespace heirloom::text {
namespace {

using Ids = std::vector<std::int32_t>;
using Strings = std::vector<std::string>;

Strings stream(const Tokenizer& tokenizer, const Ids& ids) {
  Detokenizer detokenizer(tokenizer, false);
  Strings pieces;
  for (const auto id : ids) pieces.push_back(detokenizer.push(id));
  pieces.push_back(detokenizer.flush());
  return pieces;
}

TEST(tokenizer_golden, gives_the_reference_ids_texts_and_pieces_for_every_string) {
  const auto vocabulary = test::published_tokenizer_file();
  const auto file = test::golden("tokenizer/strings.json");
  HEIRLOOM_REQUIRE(vocabulary);
  HEIRLOOM_REQUIRE(file);
  const Tokenizer& tokenizer = test::published_tokenizer();
  const auto golden = test::read_json(file);
  EXPECT_EQ(tokenizer.vocab_size(), golden["n_vocab"].get<int>());
  EXPECT_GE(golden["rows"].size(), 400u);
  for (const auto& row : golden["rows"]) {
    const auto text = row["text"].get<std::string>();
    SCOPED_TRACE(text);
    const auto ids = row["ids"].get<Ids>();
    EXPECT_EQ(tokenizer.encode(text, SpecialTokens::parse), ids);
    const auto plain = row.contains("ids_specials_as_text") ? row["ids_specials_as_text"].get<Ids>() : ids;
    EXPECT_EQ(tokenizer.encode(text, SpecialTokens::as_text), plain);
    EXPECT_EQ(tokenizer.decode(ids, false), row["decoded"].get<std::string>());
    EXPECT_EQ(stream(tokenizer, ids), row["pieces"].get<Strings>());
  }
}

TEST(tokenizer_golden, decodes_id_sequences_that_no_encoder_makes) {
  const auto vocabulary = test::published_tokenizer_file();
  const auto file = test::golden("tokenizer/ids.json");
  HEIRLOOM_REQUIRE(vocabulary);
  HEIRLOOM_REQUIRE(file);
  const Tokenizer& tokenizer = test::published_tokenizer();
  const auto golden = test::read_json(file);
  for (const auto& row : golden["rows"]) {
    const auto ids = row["ids"].get<Ids>();
    SCOPED_TRACE(row["bytes_hex"].get<std::string>());
    std::string bytes;
    for (const auto id : ids) bytes += tokenizer.token_bytes(id);
    EXPECT_EQ(bytes, test::from_hex(row["bytes_hex"]));
    EXPECT_EQ(tokenizer.decode(ids, false), row["hf_text"].get<std::string>());
    EXPECT_EQ(stream(tokenizer, ids), row["pieces"].get<Strings>());
  }
}

TEST(tokenizer_golden, replaces_broken_utf8_before_encoding) {
  const auto vocabulary = test::published_tokenizer_file();
  const auto file = test::golden("tokenizer/invalid_utf8.json");
  HEIRLOOM_REQUIRE(vocabulary);
  HEIRLOOM_REQUIRE(file);
  const auto golden = test::read_json(file);
  for (const auto& row : golden["rows"]) {
    SCOPED_TRACE(row["bytes_hex"].get<std::string>());
    EXPECT_EQ(test::published_tokenizer().encode(test::from_hex(row["bytes_hex"]), SpecialTokens::parse), row["ids"].get<Ids>());
  }
}

TEST(tokenizer_golden, encodes_every_rendered_chat_as_the_reference) {
  const auto vocabulary = test::published_tokenizer_file();
  const auto file = test::golden("chat/rendered.json");
  HEIRLOOM_REQUIRE(vocabulary);
  HEIRLOOM_REQUIRE(file);
  int compared = 0;
  const auto golden = test::read_json(file);
  for (const auto& [name, rendered] : golden["templates"].items()) {
    for (const auto& row : rendered["rows"]) {
      if (row.contains("error")) continue;
      EXPECT_EQ(test::published_tokenizer().encode(row["rendered"].get<std::string>(), SpecialTokens::parse), row["ids"].get<Ids>());
      ++compared;
    }
  }
  EXPECT_GE(compared, 80);
}

}  // namespace
}  // namespace heirloom::text
