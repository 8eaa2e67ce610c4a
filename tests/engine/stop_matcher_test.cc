#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

#include "heirloom/error.h"

namespace heirloom::engine {
namespace {

std::string feed(StopMatcher& matcher, std::string_view text, std::size_t piece) {
  std::string shown;
  for (std::size_t i = 0; i < text.size(); i += piece) {
    const std::string part = matcher.push(text.substr(i, piece));
    EXPECT_EQ(part.find("##"), std::string::npos);
    shown += part;
  }
  return shown + matcher.flush();
}

TEST(stop_matcher, cuts_at_the_stop_string_however_the_text_is_split) {
  for (std::size_t piece = 1; piece <= 12; ++piece) {
    StopMatcher matcher({"###"});
    EXPECT_EQ(feed(matcher, "one # two ###three", piece), "one # two ") << piece;
    EXPECT_EQ(matcher.match(), "###");
  }
}

TEST(stop_matcher, shows_a_false_beginning_once_it_is_known_to_be_one) {
  StopMatcher matcher({"END.", "stop"});
  EXPECT_EQ(matcher.push("xEN"), "x");
  EXPECT_EQ(matcher.push("E"), "EN");  // "ENE" is no beginning, "E" is
  EXPECT_EQ(matcher.push("ND"), "");
  EXPECT_EQ(matcher.flush(), "END");
  EXPECT_FALSE(matcher.matched());
}

TEST(stop_matcher, the_earliest_match_wins_then_the_longest) {
  StopMatcher earliest({"cd", "b"});
  EXPECT_EQ(earliest.push("abcd"), "a");
  EXPECT_EQ(earliest.match(), "b");
  StopMatcher longest({"b", "bc"});
  EXPECT_EQ(longest.push("abcd"), "a");
  EXPECT_EQ(longest.match(), "bc");
}

TEST(stop_matcher, a_stop_at_the_first_character_shows_nothing) {
  StopMatcher matcher({"a"});
  EXPECT_EQ(matcher.push("abc"), "");
  EXPECT_TRUE(matcher.matched());
  EXPECT_EQ(matcher.push("more"), "");
}

TEST(stop_matcher, empty_stop_strings_are_refused) { EXPECT_THROW(check_stops({"x", ""}), Error); }

}  // namespace
}  // namespace heirloom::engine
