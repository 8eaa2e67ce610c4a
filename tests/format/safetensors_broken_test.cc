// Broken safetensors files and folders: each is refused with one line that names file and field. Cases
// S01..S07 are public failure reports of other programs rebuilt as a few bytes; the others are their
// siblings.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "format/bytes.h"
#include "format/expect_refused.h"
#include "format/safetensors.h"

namespace heirloom {
namespace {

using namespace test;

void refused(const std::string& bytes, const std::string& part) {
  expect_refused<SafetensorsFile>(bytes, part);
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape, offsets);
}

// A file whose header holds the given tensors, followed by `data_bytes` zeros.
std::string bytes_of(const std::string& tensors, std::size_t data_bytes = 0) {
  return safetensors_bytes(fmt::format("{{{}}}", tensors), data_bytes);
}

TEST(safetensors_broken, s01_refuses_the_header_length_before_allocating) {
  refused(u64(1ull << 63) + "{}", "header length");
  refused(u64(200'000'000) + "{}", "header length");
  refused(u64(~0ull) + "{}", "header length");
  refused(u64(3) + "{}", "header length");
  refused("", "header length");
  refused("\x02", "header length");
}

TEST(safetensors_broken, s02_names_a_size_that_does_not_match_the_shape) {
  refused(bytes_of(tensor("t", "F32", "[1000,1000]", "[0,4]"), 4), "size mismatch");
  refused(bytes_of(tensor("t", "F32", "[]", "[0,8]"), 8), "size mismatch");
  refused(bytes_of(tensor("t", "BF16", "[2]", "[0,8]"), 8), "size mismatch");
  refused(bytes_of(tensor("t", "F32", "[0]", "[0,4]"), 4), "size mismatch");
}

TEST(safetensors_broken, s02_refuses_shapes_whose_size_wraps) {
  refused(bytes_of(tensor("t", "F32", "[4611686018427387905,4]", "[0,16]"), 16), "overflows");
  refused(bytes_of(tensor("t", "F32", "[4611686018427387904]", "[0,0]")), "overflows");
  refused(bytes_of(tensor("t", "F32", "[0,4294967296,4294967296]", "[0,0]")), "overflows");
  refused(bytes_of(tensor("t", "U8", "[18446744073709551615]", "[0,0]")), "overflows");
}

TEST(safetensors_broken, s03_refuses_overlaps) {
  refused(bytes_of(tensor("a", "F32", "[4]", "[0,16]") + "," + tensor("b", "F32", "[4]", "[0,16]"), 16),
          "overlap");
  refused(bytes_of(tensor("a", "F32", "[4]", "[0,16]") + "," + tensor("b", "F32", "[4]", "[8,24]"), 24),
          "overlap");
  refused(bytes_of(tensor("b", "F32", "[2]", "[4,12]") + "," + tensor("a", "F32", "[4]", "[0,16]"), 16),
          "overlap");
}

TEST(safetensors_broken, refuses_bytes_that_no_tensor_covers) {
  refused(bytes_of(tensor("a", "F32", "[1]", "[4,8]"), 8), "unused");
  refused(bytes_of(tensor("a", "F32", "[1]", "[0,4]"), 8), "4 bytes follow the last tensor");
  refused(safetensors_bytes("{}", 1), "1 bytes follow");
}

TEST(safetensors_broken, refuses_offsets_outside_the_file) {
  refused(bytes_of(tensor("t", "F32", "[2]", "[0,8]"), 4), "past the end");
  refused(bytes_of(tensor("t", "F32", "[1]", "[18446744073709551612,18446744073709551615]"), 4),
          "past the end");
  refused(bytes_of(tensor("t", "F32", "[1]", "[4,0]"), 4), "run backwards");
}

TEST(safetensors_broken, s07_refuses_headers_of_another_shape) {
  refused(safetensors_bytes("[]"), "found an array, expected an object");
  refused(safetensors_bytes("null"), "found null");
  refused(safetensors_bytes("5"), "found 5");
  refused(safetensors_bytes("\"x\""), "found a string");
  refused(safetensors_bytes("{\"t\":5}"), "tensor \"t\": found 5, expected an object");
  refused(safetensors_bytes("{\"t\":[]}"), "found an array");
  refused(safetensors_bytes("{\"t\":null}"), "found null");
  refused(safetensors_bytes("{\"t\":{}}"), "dtype: missing");
  refused(safetensors_bytes(""), "invalid JSON");
  refused(safetensors_bytes("{"), "invalid JSON");
  refused(safetensors_bytes("{}}"), "invalid JSON");
  refused(safetensors_bytes(std::string("{}\0\0", 4)), "invalid JSON");
  refused(safetensors_bytes("{\"\xff\":{}}"), "invalid JSON");
}

TEST(safetensors_broken, s07_refuses_deep_nesting_without_recursion) {
  refused(safetensors_bytes(std::string(10'000, '[')), "");
  refused(safetensors_bytes("{\"t\":" + std::string(10'000, '[')), "");
  refused(safetensors_bytes("{\"t\":{\"dtype\":" + std::string(10'000, '[')), "");
  refused(safetensors_bytes("{\"t\":{\"extra\":" + std::string(10'000, '[')), "nested deeper");
  std::string objects;
  for (int i = 0; i < 10'000; ++i) objects += "{\"t\":";
  refused(safetensors_bytes(objects), "");
}

TEST(safetensors_broken, refuses_fields_of_the_wrong_kind) {
  refused(safetensors_bytes(R"({"t":{"dtype":7,"shape":[],"data_offsets":[0,4]}})", 4),
          "dtype: found 7, expected a string");
  refused(safetensors_bytes(R"({"t":{"dtype":"F32","shape":3,"data_offsets":[0,4]}})", 4),
          "shape: found 3, expected an array");
  refused(safetensors_bytes(R"({"t":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4),
          "shape: found -1");
  refused(safetensors_bytes(R"({"t":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4),
          "shape: found 1.5");
  refused(safetensors_bytes(R"({"t":{"dtype":"F32","shape":[1e3],"data_offsets":[0,4]}})", 4),
          "shape: found 1e3");
  refused(safetensors_bytes(R"({"t":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", 4),
          "shape: found an array");
  refused(safetensors_bytes(R"({"t":{"dtype":"F32","shape":[],"data_offsets":[0]}})", 4),
          "found 1 numbers, expected 2");
  refused(safetensors_bytes(R"({"t":{"dtype":"F32","shape":[],"data_offsets":[0,4,8]}})", 4),
          "more than 2 numbers");
  refused(safetensors_bytes(R"({"t":{"dtype":"F32","shape":[],"data_offsets":["0","4"]}})", 4),
          "found a string");
  refused(
      safetensors_bytes(R"({"t":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4]}})", 4),
      "shape: found");
  refused(safetensors_bytes(R"({"t":{"dtype":"F32","data_offsets":[0,4]}})", 4), "shape: missing");
  refused(safetensors_bytes(R"({"t":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})", 4),
          "more than 8");
  refused(safetensors_bytes(R"({"__metadata__":{"a":1}})"), "__metadata__ \"a\"");
  refused(safetensors_bytes(R"({"__metadata__":[]})"), "__metadata__");
}

TEST(safetensors_broken, refuses_a_tensor_given_twice) {
  refused(bytes_of(tensor("t", "F32", "[1]", "[0,4]") + "," + tensor("t", "F32", "[1]", "[4,8]"), 8),
          "given twice");
}

TEST(safetensors_broken, refuses_dtypes_by_name) {
  refused(bytes_of(tensor("t", "F4_X", "[4]", "[0,2]"), 2), "dtype \"F4_X\" is not supported");
  for (const char* dtype : {"BOOL", "F8_E4M3", "F8_E5M2"}) {
    const TempFile temp("unsupported.safetensors", bytes_of(tensor("t", dtype, "[4]", "[0,4]"), 4));
    const SafetensorsFile file(temp.path());
    try {
      file.find("t");
      ADD_FAILURE() << dtype << " was given out";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_file);
      EXPECT_THAT(error.what(), testing::HasSubstr(std::string("dtype ") + dtype + " is not supported"));
    }
  }
}

TEST(safetensors_broken, bounds_what_a_header_can_cost) {
  refused(safetensors_bytes(std::string((16 << 20) + 1, ' ')), "at most 16777216 are allowed");
  refused(safetensors_bytes(fmt::format(R"({{"{}":{{}}}})", std::string(5 << 20, 'x'))),
          "a string of more than");
  refused(safetensors_bytes(fmt::format(R"({{"{}":{{}}}})", std::string(5'000, 'x'))),
          "tensor name of 5000 bytes");
  std::string metadata;
  for (int i = 0; i < 5'000; ++i) metadata += fmt::format(R"("{}":"",)", i);
  refused(safetensors_bytes(R"({"__metadata__":{)" + metadata + R"("x":""}})"), "more than 4096 entries");
  std::string tensors;
  for (int i = 0; i < 132'000; ++i)
    tensors += fmt::format(R"("{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}},)", i);
  refused(safetensors_bytes("{" + tensors + R"("x":0})"), "more than 131072 tensors");
}

// A folder with the given files, removed at the end of the test.
class Folder {
 public:
  Folder() : temp_("folder") { std::filesystem::create_directory(temp_.path()); }
  Folder& add(const std::string& name, const std::string& bytes) {
    std::ofstream(temp_.path() / name, std::ios::binary) << bytes;
    return *this;
  }
  std::string refusal() const {
    try {
      const SafetensorsFolder folder(temp_.path());
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_file);
      return error.what();
    }
    return "was opened";
  }

 private:
  TempFile temp_;
};

const char* const kIndex = "model.safetensors.index.json";

TEST(safetensors_folder_broken, names_the_files_that_it_looked_for) {
  EXPECT_THAT(Folder().refusal(),
              testing::HasSubstr("neither model.safetensors nor model.safetensors.index.json"));
}

TEST(safetensors_folder_broken, names_the_missing_shard) {
  EXPECT_THAT(Folder().add(kIndex, R"({"weight_map":{"t":"model-00002-of-00002.safetensors"}})").refusal(),
              testing::HasSubstr("shard model-00002-of-00002.safetensors is missing"));
}

TEST(safetensors_folder_broken, names_a_tensor_that_its_shard_lacks) {
  EXPECT_THAT(Folder()
                  .add("a.safetensors", safetensors_bytes("{}"))
                  .add(kIndex, R"({"weight_map":{"t":"a.safetensors"}})")
                  .refusal(),
              testing::HasSubstr("weight_map \"t\": shard a.safetensors has no such tensor"));
}

TEST(safetensors_folder_broken, refuses_shards_outside_the_folder) {
  for (const char* shard : {"../a.safetensors", "/etc/passwd", "x/../../a", "..", ""}) {
    EXPECT_THAT(Folder().add(kIndex, std::string(R"({"weight_map":{"t":")") + shard + "\"}}").refusal(),
                testing::HasSubstr("is not the name of a file in this folder"));
  }
}

TEST(safetensors_folder_broken, refuses_indexes_of_another_shape) {
  EXPECT_THAT(Folder().add(kIndex, "[]").refusal(), testing::HasSubstr("weight_map"));
  EXPECT_THAT(Folder().add(kIndex, "{}").refusal(), testing::HasSubstr("weight_map"));
  EXPECT_THAT(Folder().add(kIndex, R"({"weight_map":[]})").refusal(), testing::HasSubstr("weight_map"));
  EXPECT_THAT(Folder().add(kIndex, R"({"weight_map":{"t":5}})").refusal(),
              testing::HasSubstr("expected the name of a file"));
  EXPECT_THAT(Folder().add(kIndex, std::string(10'000, '[')).refusal(), testing::HasSubstr("nested deeper"));
  EXPECT_THAT(Folder().add(kIndex, "{\"weight_map\":").refusal(), testing::HasSubstr("invalid JSON at byte"));
}

}  // namespace
}  // namespace heirloom
