// Broken GGUF files: each is refused with one line that names file, offset and field. Cases G01..G16 are
// public failure reports of other programs rebuilt as a few bytes; the others are their siblings.
#include <gtest/gtest.h>

#include <vector>

#include "format/bytes.h"
#include "format/expect_refused.h"
#include "format/gguf.h"

namespace heirloom {
namespace {

using namespace test;

void refused(const std::string& bytes, const std::string& part) {
  expect_refused<GgufFile>(bytes, part);
}

constexpr std::uint32_t kU8 = 0, kU32 = 4, kBool = 7, kString = 8, kArray = 9;
constexpr std::uint32_t kF32 = 0, kF16 = 1, kQ4_0 = 2;

TEST(gguf_broken, g01_refuses_an_array_length_that_no_file_can_hold) {
  refused(gguf_header(0, 1) + gguf_key("a", kArray, u32(kU32) + u64(1ull << 63)), "array length too large");
  refused(gguf_header(0, 1) + gguf_key("a", kArray, u32(kString) + u64(1ull << 61)),
          "array length too large");
  refused(gguf_header(0, 1) + gguf_key("a", kArray, u32(kU8) + u64(~0ull)), "array length too large");
  refused(gguf_header(0, 1) + gguf_key("a", kArray, u32(kU32) + u64(2) + u32(7)), "array length too large");
}

TEST(gguf_broken, g01_refuses_an_array_of_strings_that_ends_early) {
  refused(gguf_header(0, 1) + gguf_key("a", kArray, u32(kString) + u64(2) + gguf_string("x") + u64(50)),
          "string length 50");
}

TEST(gguf_broken, refuses_arrays_of_arrays_and_unknown_types) {
  refused(gguf_header(0, 1) + gguf_key("a", kArray, u32(kArray) + u64(1)), "arrays of arrays");
  refused(gguf_header(0, 1) + gguf_key("a", kArray, u32(13) + u64(1) + u64(0)), "value type 13 is unknown");
  refused(gguf_header(0, 1) + gguf_key("a", 99, u32(1)), "value type 99 is unknown");
}

TEST(gguf_broken, g02_refuses_counts_beyond_the_file) {
  refused(gguf_header(0, 1ull << 61), "metadata_kv_count");
  refused(gguf_header(1ull << 61, 0), "tensor_count");
  refused(gguf_header(0, ~0ull), "metadata_kv_count");
  refused(gguf_header(~0ull, 0), "tensor_count");
  refused(gguf_header(1, 0), "tensor_count");
}

TEST(gguf_broken, g03_refuses_tensor_data_past_the_end) {
  const std::string table = pad_to(gguf_header(1, 0) + gguf_tensor("t", {64, 64}, kF16, 0), 32);
  refused(table + std::string(100, 'x'), "tensor data runs past the end");
  refused(table + std::string(64 * 64 * 2 - 1, 'x'), "tensor data runs past the end");
  refused(table, "tensor data runs past the end");
  refused(gguf_header(1, 0) + gguf_tensor("t", {64, 64}, kF16, 0), "tensor data runs past the end");
}

TEST(gguf_broken, g03_refuses_offsets_past_the_end_or_near_the_wrap) {
  for (const std::uint64_t offset : std::vector<std::uint64_t>{64, 1ull << 40, 1ull << 63, ~0ull - 31}) {
    refused(pad_to(gguf_header(1, 0) + gguf_tensor("t", {8}, kF32, offset), 32) + std::string(32, 'x'),
            "tensor data runs past the end");
  }
}

TEST(gguf_broken, g04_refuses_shapes_whose_size_wraps) {
  const auto with_dims = [](const std::vector<std::uint64_t>& dims, std::uint32_t type) {
    refused(pad_to(gguf_header(1, 0) + gguf_tensor("t", dims, type, 0), 32) + std::string(64, 'x'),
            "overflows");
  };
  with_dims({(1ull << 42) + 1, 1ull << 22}, kF32);
  with_dims({1ull << 62, 4}, kF32);
  with_dims({1ull << 32, 1ull << 32}, kF32);
  with_dims({1ull << 62}, kF32);  // elements fit, bytes do not
  with_dims({1ull << 21, 1ull << 21, 1ull << 21, 1ull << 21}, kF16);
  with_dims({1ull << 63}, kQ4_0);
}

TEST(gguf_broken, refuses_shapes_that_no_tensor_has) {
  refused(pad_to(gguf_header(1, 0) + gguf_tensor("t", {8, 0}, kF32, 0), 32), "empty dimension");
  refused(gguf_header(1, 0) + gguf_string("t") + u32(5) + std::string(100, '\0'), "5 dimensions");
  refused(gguf_header(1, 0) + gguf_string("t") + u32(0xffffffff) + std::string(100, '\0'),
          "4294967295 dimensions");
  refused(pad_to(gguf_header(1, 0) + gguf_tensor("t", {33}, kQ4_0, 0), 32) + std::string(64, 'x'),
          "not whole blocks");
}

TEST(gguf_broken, g06_names_key_and_types_when_an_array_has_the_wrong_element_type) {
  const TempFile temp("scores.gguf", gguf_header(0, 1) + gguf_key("tokenizer.ggml.scores", kArray,
                                                                  u32(kU8) + u64(3) + "abc"));
  const GgufFile file(temp.path());
  try {
    file.metadata().get_f32s("tokenizer.ggml.scores");
    ADD_FAILURE() << "read uint8 as float32";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("tokenizer.ggml.scores"));
    EXPECT_THAT(error.what(), testing::HasSubstr("found array of uint8, expected array of float32"));
  }
}

TEST(gguf_broken, g07_refuses_alignments_that_are_no_small_power_of_two) {
  for (const std::uint32_t alignment : {0u, 3u, 1u << 31, 24u, 0xffffffffu}) {
    refused(pad_to(gguf_header(1, 1) + gguf_key("general.alignment", kU32, u32(alignment)) +
                       gguf_tensor("t", {8}, kF32, 0),
                   32) +
                std::string(64, 'x'),
            "general.alignment");
  }
  refused(gguf_header(0, 1) + gguf_key("general.alignment", kString, gguf_string("32")),
          "found string, expected an integer");
}

TEST(gguf_broken, refuses_offsets_off_the_alignment) {
  refused(pad_to(gguf_header(1, 0) + gguf_tensor("t", {8}, kF32, 4), 32) + std::string(64, 'x'),
          "not a multiple");
}

TEST(gguf_broken, g16_says_that_byte_order_and_version_are_not_supported) {
  refused(gguf_header(0, 0, 0x03000000), "big-endian byte order is not supported");
  refused(gguf_header(0, 0, 0x02000000), "big-endian byte order is not supported");
  refused(gguf_header(0, 0, 1), "versions 2 and 3 are supported");
  refused(gguf_header(0, 0, 4), "versions 2 and 3 are supported");
  refused(gguf_header(0, 0, 0), "versions 2 and 3 are supported");
  refused(std::string("FUGG") + gguf_header(0, 0).substr(4), "byte order of this file is not supported");
  refused(std::string("PK\x03\x04") + gguf_header(0, 0).substr(4), "not a GGUF file");
}

TEST(gguf_broken, refuses_files_cut_anywhere_in_the_table) {
  const std::string whole = pad_to(gguf_header(1, 2) + gguf_key("general.name", kString, gguf_string("x")) +
                                       gguf_key("n", kArray, u32(kU32) + u64(2) + u32(1) + u32(2)) +
                                       gguf_tensor("t", {8, 2}, kF32, 0),
                                   32) +
                            std::string(64, 'x');
  const TempFile good("whole.gguf", whole);
  EXPECT_NO_THROW(GgufFile(good.path()));
  for (std::size_t size = 0; size < whole.size(); ++size) refused(whole.substr(0, size), "");
}

TEST(gguf_broken, refuses_keys_and_tensors_given_twice) {
  refused(gguf_header(0, 2) + gguf_key("a", kU32, u32(1)) + gguf_key("a", kU32, u32(2)),
          "key \"a\": given twice");
  refused(pad_to(gguf_header(2, 0) + gguf_tensor("t", {8}, kF32, 0) + gguf_tensor("t", {8}, kF32, 32), 32) +
              std::string(64, 'x'),
          "tensor \"t\": given twice");
}

TEST(gguf_broken, refuses_tensors_that_overlap) {
  refused(pad_to(gguf_header(2, 0) + gguf_tensor("s", {16}, kF32, 0) + gguf_tensor("t", {8}, kF32, 32), 32) +
              std::string(64, 'x'),
          "overlaps that of \"s\"");
  refused(pad_to(gguf_header(2, 0) + gguf_tensor("s", {8}, kF32, 0) + gguf_tensor("t", {8}, kF32, 0), 32) +
              std::string(64, 'x'),
          "overlaps");
}

TEST(gguf_broken, refuses_bools_that_are_neither_0_nor_1) {
  refused(gguf_header(0, 1) + gguf_key("b", kBool, std::string(1, '\x02')), "bool is 2");
  refused(gguf_header(0, 1) + gguf_key("b", kArray, u32(kBool) + u64(3) + std::string("\x01\x00\xff", 3)),
          "bool is 255");
}

TEST(gguf_broken, refuses_strings_longer_than_the_file_or_the_limit) {
  refused(gguf_header(0, 1) + u64(~0ull) + std::string(32, 'x'), "string length");
  refused(gguf_header(0, 1) + gguf_string(std::string(70'000, 'k')) + u32(kU32) + u32(1), "above the limit");
  refused(gguf_header(1, 0) + gguf_string(std::string(2'000, 'k')) + std::string(64, '\0'),
          "above the limit");
}

TEST(gguf_broken, keeps_messages_on_one_line_when_names_hold_control_characters) {
  refused(gguf_header(0, 2) + gguf_key("a\nb\x1b[2J", kU32, u32(1)) + gguf_key("a\nb\x1b[2J", kU32, u32(2)),
          "a\\x0ab\\x1b[2J");
}

TEST(gguf_broken, refuses_removed_and_unknown_tensor_types_at_open) {
  refused(pad_to(gguf_header(1, 0) + gguf_tensor("t", {32}, 4, 0), 32) + std::string(64, 'x'),
          "Q4_2 was removed");
  refused(pad_to(gguf_header(1, 0) + gguf_tensor("t", {32}, 31, 0), 32) + std::string(64, 'x'),
          "Q4_0_4_4 was removed");
  refused(pad_to(gguf_header(1, 0) + gguf_tensor("t", {32}, 4096, 0), 32) + std::string(64, 'x'),
          "tensor type 4096 is unknown");
}

TEST(gguf_broken, refuses_unsupported_tensor_types_by_name_when_asked_for) {
  const struct {
    std::uint32_t number;
    std::uint64_t cols;
    const char* name;
  } kCases[] = {{9, 32, "Q8_1"},      {15, 256, "Q8_K"},  {16, 256, "IQ2_XXS"}, {17, 256, "IQ2_XS"},
                {18, 256, "IQ3_XXS"}, {19, 256, "IQ1_S"}, {21, 256, "IQ3_S"},   {22, 256, "IQ2_S"},
                {29, 256, "IQ1_M"},   {34, 256, "TQ1_0"}, {35, 256, "TQ2_0"},   {40, 64, "NVFP4"},
                {41, 128, "Q1_0"}};
  for (const auto& c : kCases) {
    const TempFile temp(
        "unsupported.gguf",
        pad_to(gguf_header(1, 0) + gguf_tensor("t", {c.cols}, c.number, 0), 32) + std::string(320, 'x'));
    const GgufFile file(temp.path());
    EXPECT_EQ(file.type_name("t"), c.name);
    EXPECT_EQ(file.names().size(), 1u);
    try {
      file.find("t");
      ADD_FAILURE() << c.name << " was given out";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_file);
      EXPECT_THAT(error.what(), testing::HasSubstr(std::string("type ") + c.name + " is not supported"));
    }
  }
}

TEST(gguf_broken, refuses_empty_files_folders_and_missing_files) {
  refused("", "magic");
  refused("GGU", "magic");
  EXPECT_THROW(GgufFile(std::filesystem::temp_directory_path()), Error);
  EXPECT_THROW(GgufFile("/nonexistent/model.gguf"), Error);
}

}  // namespace
}  // namespace heirloom
