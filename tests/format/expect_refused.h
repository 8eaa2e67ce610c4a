// Asserts that opening a file made of given bytes throws Error{bad_file} with a one-line message naming the
// file and holding some text.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "heirloom/error.h"
#include "support/temp_file.h"

namespace heirloom::test {

template <typename File>
void expect_refused(std::string_view bytes, const std::string& message_part) {
  const TempFile temp("broken", bytes);
  try {
    const File file(temp.path());
    ADD_FAILURE() << "was opened; expected a refusal with \"" << message_part << "\"";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.kind(), ErrorKind::bad_file) << message;
    EXPECT_THAT(message, testing::HasSubstr(message_part));
    EXPECT_THAT(message, testing::StartsWith(temp.path().string() + ": "));
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 600u) << message;
  }
}

}  // namespace heirloom::test
