// Valid safetensors files and folders.
#include "format/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "format/bytes.h"
#include "format/quant_blocks.h"
#include "support/golden.h"
#include "support/temp_file.h"

namespace heirloom {
namespace {

using namespace test;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

TEST(safetensors, reads_every_supported_dtype) {
  const struct {
    const char* name;
    std::size_t bytes;
    DType type;
  } kCases[] = {{"F32", 4, DType::f32}, {"F16", 2, DType::f16}, {"BF16", 2, DType::bf16},
                {"F64", 8, DType::f64}, {"I8", 1, DType::i8},   {"I16", 2, DType::i16},
                {"I32", 4, DType::i32}, {"I64", 8, DType::i64}, {"U8", 1, DType::u8}};
  for (const auto& c : kCases) {
    const TempFile temp("one.safetensors", safetensors_bytes(std::string(R"({"t":{"dtype":")") + c.name +
                                                                 R"(","shape":[3,1],"data_offsets":[0,)" +
                                                                 std::to_string(3 * c.bytes) + "]}}",
                                                             3 * c.bytes));
    const SafetensorsFile file(temp.path());
    const TensorView& tensor = file.require("t");
    EXPECT_EQ(tensor.type, c.type) << c.name;
    EXPECT_THAT(tensor.shape, ElementsAre(3u, 1u));
    EXPECT_THAT(tensor.data, SizeIs(3 * c.bytes));
  }
}

TEST(safetensors, reads_files_without_tensors_scalars_and_empty_tensors) {
  const TempFile none("none.safetensors", safetensors_bytes("{}"));
  EXPECT_THAT(SafetensorsFile(none.path()).names(), IsEmpty());
  const TempFile some("some.safetensors",
                      safetensors_bytes(R"({"scalar":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                                        R"("empty":{"dtype":"F32","shape":[2,0],"data_offsets":[4,4]}}   )",
                                        4));
  const SafetensorsFile file(some.path());
  EXPECT_EQ(file.require("scalar").elements(), 1u);
  EXPECT_EQ(file.require("empty").elements(), 0u);
  EXPECT_THAT(file.require("empty").data, IsEmpty());
}

TEST(safetensors, keeps_header_order_and_metadata_and_passes_over_unknown_fields) {
  const TempFile temp(
      "meta.safetensors",
      safetensors_bytes(
          R"({"__metadata__":{"format":"pt","x":"é"},)"
          R"("z":{"dtype":"U8","shape":[1],"data_offsets":[1,2],"extra":[{"a":[1]}],"more":{"dtype":1}},)"
          R"("a":{"data_offsets":[0,1],"shape":[1],"dtype":"U8","note":null}})",
          2));
  const SafetensorsFile file(temp.path());
  EXPECT_THAT(file.names(), ElementsAre("z", "a"));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.metadata().at("x"), "é");
}

TEST(safetensors_folder, joins_the_shards_of_an_index) {
  const auto path = golden("models/dense_b");
  HEIRLOOM_REQUIRE(path);
  const SafetensorsFolder folder(path);
  EXPECT_THAT(folder.names(), testing::Contains("mtp.fc.weight"));
  const TensorView& embedding = folder.require("model.embed_tokens.weight");
  EXPECT_THAT(embedding.shape, ElementsAre(448u, 160u));
  EXPECT_EQ(embedding.type, DType::bf16);
  for (const std::string& name : folder.names()) {
    const TensorView& tensor = folder.require(name);
    EXPECT_EQ(tensor.name, name);
    folder.release(tensor);
  }
  EXPECT_EQ(folder.find("no.such.tensor"), nullptr);
}

TEST(safetensors_folder, prefers_the_single_file_as_transformers_does) {
  const TempFile folder("folder");
  std::filesystem::create_directory(folder.path());
  std::ofstream(folder.path() / "model.safetensors", std::ios::binary)
      << safetensors_bytes(R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2);
  std::ofstream(folder.path() / "model.safetensors.index.json")
      << R"({"weight_map":{"u":"missing.safetensors"}})";
  const SafetensorsFolder source(folder.path());
  EXPECT_THAT(source.names(), ElementsAre("t"));
}

TEST(safetensors_folder, finds_every_tensor_in_the_shard_that_the_index_names) {
  const TempFile folder("folder");
  std::filesystem::create_directory(folder.path());
  const auto shard = [&](const char* name, const char* tensor, char value) {
    std::ofstream(folder.path() / name, std::ios::binary)
        << safetensors_bytes(std::string("{\"") + tensor +
                             R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})")
        << value;
  };
  shard("b.safetensors", "t", 'b');
  shard("a.safetensors", "u", 'a');
  std::ofstream(folder.path() / "model.safetensors.index.json")
      << R"({"metadata":{"total_size":2},"weight_map":{"u":"a.safetensors","t":"b.safetensors"}})";
  const SafetensorsFolder source(folder.path());
  EXPECT_THAT(source.names(), ElementsAre("t", "u"));
  EXPECT_EQ(source.require("t").data[0], std::byte{'b'});
  EXPECT_EQ(source.require("u").data[0], std::byte{'a'});
}

}  // namespace
}  // namespace heirloom
