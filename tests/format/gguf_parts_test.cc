// GGUF models in several files.
#include "format/gguf_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "format/bytes.h"
#include "support/temp_file.h"

namespace heirloom {
namespace {

using namespace test;
using testing::ElementsAre;
using testing::HasSubstr;

// Keys as gguf-split writes them and one int8 tensor of one value.
std::string part(std::uint16_t index, std::uint16_t count, const std::string& tensor, char value,
                 std::int32_t total = 3) {
  return pad_to(gguf_header(1, 3) + gguf_key("split.no", 2, packed(index)) +
                    gguf_key("split.count", 2, packed(count)) +
                    gguf_key("split.tensors.count", 5, packed(total)) + gguf_tensor(tensor, {1}, 24, 0),
                32) +
         value;
}

class gguf_parts : public testing::Test {
 protected:
  gguf_parts() : folder_("parts") { std::filesystem::create_directory(folder_.path()); }
  void write(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_.path() / name, std::ios::binary) << bytes;
  }
  std::shared_ptr<const TensorSource> open(const std::string& name) {
    return gguf_tensors(std::make_shared<GgufFile>(folder_.path() / name));
  }
  std::string refusal(const std::string& name) {
    try {
      open(name);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_file);
      return error.what();
    }
    return "was opened";
  }

 private:
  TempFile folder_;
};

TEST_F(gguf_parts, are_one_source) {
  write("m-00001-of-00003.gguf", part(0, 3, "a", 'A'));
  write("m-00002-of-00003.gguf", part(1, 3, "b", 'B'));
  write("m-00003-of-00003.gguf", part(2, 3, "c", 'C'));
  const auto source = open("m-00001-of-00003.gguf");
  EXPECT_THAT(source->names(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(source->require("b").data[0], std::byte{'B'});
  EXPECT_EQ(source->require("c").data[0], std::byte{'C'});
  EXPECT_EQ(source->find("d"), nullptr);
  source->release(source->require("c"));
}

TEST_F(gguf_parts, a_whole_file_stays_itself) {
  write("whole.gguf", gguf_header(0, 0));
  write("one.gguf", part(0, 1, "a", 'A', 1));
  EXPECT_TRUE(open("whole.gguf")->names().empty());
  EXPECT_THAT(open("one.gguf")->names(), ElementsAre("a"));
}

TEST_F(gguf_parts, names_the_part_that_is_missing) {
  write("m-00001-of-00002.gguf", part(0, 2, "a", 'A'));
  EXPECT_THAT(refusal("m-00001-of-00002.gguf"), HasSubstr("part 2 of 2 is missing: m-00002-of-00002.gguf"));
}

TEST_F(gguf_parts, names_the_part_to_open) {
  write("m-00002-of-00002.gguf", part(1, 2, "a", 'A'));
  EXPECT_THAT(refusal("m-00002-of-00002.gguf"), HasSubstr("open the first part, m-00001-of-00002.gguf"));
}

TEST_F(gguf_parts, refuses_names_that_do_not_fit_the_keys) {
  write("renamed.gguf", part(0, 2, "a", 'A'));
  EXPECT_THAT(refusal("renamed.gguf"), HasSubstr("should end in \"-00001-of-00002.gguf\""));
  write("m-00001-of-00002.gguf", part(0, 2, "a", 'A'));
  write("m-00002-of-00002.gguf", part(0, 2, "b", 'B'));
  EXPECT_THAT(refusal("m-00001-of-00002.gguf"), HasSubstr("its keys say part 1 of 2, its name part 2 of 2"));
  write("n-00010-of-00002.gguf", part(9, 2, "a", 'A'));
  EXPECT_THAT(refusal("n-00010-of-00002.gguf"), HasSubstr("part 10 of 2"));
}

TEST_F(gguf_parts, refuses_repeated_and_missing_tensors) {
  write("m-00001-of-00002.gguf", part(0, 2, "a", 'A'));
  write("m-00002-of-00002.gguf", part(1, 2, "a", 'B'));
  EXPECT_THAT(refusal("m-00001-of-00002.gguf"), HasSubstr("tensor \"a\" is also in another part"));
  write("m-00002-of-00002.gguf", part(1, 2, "b", 'B'));
  EXPECT_THAT(refusal("m-00001-of-00002.gguf"),
              HasSubstr("split.tensors.count is 3, but the 2 parts have 2 tensors"));
}

TEST_F(gguf_parts, refuses_part_counts_that_no_model_has) {
  write("m.gguf", part(0, 65'535, "a", 'A'));
  EXPECT_THAT(refusal("m.gguf"), HasSubstr("split.count is 65535"));
}

}  // namespace
}  // namespace heirloom
