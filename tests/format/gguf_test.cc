// Valid GGUF files: typed metadata, the tensor table, and files that other programs wrote.
#include "format/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/half.h"
#include "base/json.h"
#include "format/bytes.h"
#include "format/quant_blocks.h"
#include "format/quant_golden.h"
#include "format/safetensors.h"
#include "support/golden.h"
#include "support/temp_file.h"

namespace heirloom {
namespace {

using namespace test;
using testing::ElementsAre;
using testing::HasSubstr;

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_file);
    return error.what();
  }
  return "no error";
}

TEST(gguf, reads_versions_2_and_3) {
  for (const std::uint32_t version : {2u, 3u}) {
    const TempFile temp("empty.gguf", gguf_header(0, 0, version));
    const GgufFile file(temp.path());
    EXPECT_EQ(file.version(), version);
    EXPECT_TRUE(file.names().empty());
    EXPECT_EQ(file.find("t"), nullptr);
  }
}

TEST(gguf, gives_shapes_outermost_first_and_data_at_its_place) {
  const TempFile temp(
      "two.gguf",
      pad_to(pad_to(gguf_header(2, 0) + gguf_tensor("b", {2, 3}, 0, 32) + gguf_tensor("a", {4}, 24, 0), 32) +
                 "wxyz",
             32) +
          std::string(24, '\1'));
  const GgufFile file(temp.path());
  EXPECT_THAT(file.names(), ElementsAre("b", "a"));
  const TensorView& b = file.require("b");
  EXPECT_THAT(b.shape, ElementsAre(3u, 2u));
  EXPECT_EQ(b.cols(), 2u);
  EXPECT_EQ(b.rows(), 3u);
  EXPECT_EQ(b.elements(), 6u);
  EXPECT_EQ(b.type, DType::f32);
  EXPECT_EQ(b.data.size(), 24u);
  EXPECT_EQ(b.data[0], std::byte{1});
  const TensorView& a = file.require("a");
  EXPECT_EQ(a.type, DType::i8);
  EXPECT_EQ(a.data[3], std::byte{'z'});
  file.release(b);
  EXPECT_EQ(b.data[23], std::byte{1});
}

TEST(gguf, honours_the_files_alignment) {
  for (const std::uint32_t alignment : {1u, 8u, 64u, 4096u}) {
    const TempFile temp("aligned.gguf",
                        pad_to(gguf_header(1, 1) + gguf_key("general.alignment", 4, u32(alignment)) +
                                   gguf_tensor("t", {3}, 24, 0),
                               alignment) +
                            "abc");
    const GgufFile file(temp.path());
    EXPECT_EQ(file.alignment(), alignment);
    EXPECT_EQ(file.require("t").data[2], std::byte{'c'});
  }
}

TEST(gguf, names_a_missing_tensor) {
  const TempFile temp("empty.gguf", gguf_header(0, 0));
  const GgufFile file(temp.path());
  EXPECT_THAT(message_of([&] { file.require("blk.2.attn_q.weight"); }),
              HasSubstr("blk.2.attn_q.weight is missing"));
}

// One key of each value type.
class gguf_metadata : public testing::Test {
 protected:
  gguf_metadata()
      : temp_(
            "keys.gguf",
            gguf_header(0, 18) + gguf_key("u8", 0, "\xc8") + gguf_key("i8", 1, "\xff") +
                gguf_key("u16", 2, packed<std::uint16_t>(65535)) +
                gguf_key("i16", 3, packed<std::int16_t>(-2)) + gguf_key("u32", 4, u32(4'000'000'000)) +
                gguf_key("i32", 5, packed<std::int32_t>(7)) + gguf_key("f32", 6, packed(1.5f)) +
                gguf_key("bool", 7, "\x01") + gguf_key("string", 8, gguf_string("text")) +
                gguf_key("u64", 10, u64(1ull << 40)) + gguf_key("i64", 11, packed<std::int64_t>(-5)) +
                gguf_key("f64", 12, packed(1e300)) +
                gguf_key("strings", 9,
                         u32(8) + u64(3) + gguf_string("a") + gguf_string("") + gguf_string("ccc")) +
                gguf_key("ints", 9, u32(3) + u64(2) + packed<std::int16_t>(-1) + packed<std::int16_t>(300)) +
                gguf_key("floats", 9, u32(6) + u64(2) + packed(0.5f) + packed(-2.0f)) +
                gguf_key("bools", 9, u32(7) + u64(2) + std::string("\x01\x00", 2)) +
                gguf_key("none", 9, u32(8) + u64(0)) + gguf_key("big", 9, u32(10) + u64(1) + u64(~0ull))),
        file_(temp_.path()) {}

  TempFile temp_;
  GgufFile file_;
  const GgufMetadata& keys() const { return file_.metadata(); }
};

TEST_F(gguf_metadata, reads_every_integer_width_as_u64) {
  EXPECT_EQ(keys().get_u64("u8"), 200u);
  EXPECT_EQ(keys().get_u64("u16"), 65'535u);
  EXPECT_EQ(keys().get_u64("u32"), 4'000'000'000u);
  EXPECT_EQ(keys().get_u64("i32"), 7u);
  EXPECT_EQ(keys().get_u64("u64"), 1ull << 40);
  EXPECT_EQ(keys().get_count("i32"), 7);
  EXPECT_THAT(message_of([&] { keys().get_count("u64"); }), HasSubstr("expected at most 2147483647"));
  for (const char* key : {"i8", "i16", "i64"}) {
    EXPECT_THAT(message_of([&] { keys().get_u64(key); }), HasSubstr("expected no negative number")) << key;
  }
}

TEST_F(gguf_metadata, reads_floats_bools_and_strings) {
  EXPECT_EQ(keys().get_f32("f32"), 1.5f);
  EXPECT_TRUE(std::isinf(keys().get_f32("f64")));
  EXPECT_TRUE(keys().get_bool("bool"));
  EXPECT_EQ(keys().get_string("string"), "text");
}

TEST_F(gguf_metadata, reads_arrays) {
  EXPECT_THAT(keys().get_strings("strings"), ElementsAre("a", "", "ccc"));
  EXPECT_THAT(keys().get_i64s("ints"), ElementsAre(-1, 300));
  EXPECT_THAT(keys().get_f32s("floats"), ElementsAre(0.5f, -2.0f));
  EXPECT_THAT(keys().get_bools("bools"), ElementsAre(true, false));
  EXPECT_TRUE(keys().get_strings("none").empty());
  EXPECT_THAT(message_of([&] { keys().get_i64s("big"); }), HasSubstr("18446744073709551615"));
}

TEST_F(gguf_metadata, tells_missing_keys_from_wrong_types) {
  EXPECT_EQ(keys().find_u64("absent"), std::nullopt);
  EXPECT_EQ(keys().find_strings("absent"), std::nullopt);
  EXPECT_THAT(message_of([&] { keys().get_f32("absent"); }), HasSubstr("key \"absent\" is missing"));
  EXPECT_THAT(message_of([&] { keys().find_u64("string"); }), HasSubstr("found string, expected an integer"));
  EXPECT_THAT(message_of([&] { keys().get_u64("f32"); }), HasSubstr("found float32, expected an integer"));
  EXPECT_THAT(message_of([&] { keys().get_u64("bool"); }), HasSubstr("found bool, expected an integer"));
  EXPECT_THAT(message_of([&] { keys().get_u64("ints"); }),
              HasSubstr("found array of int16, expected an integer"));
  EXPECT_THAT(message_of([&] { keys().get_f32("u32"); }), HasSubstr("found uint32, expected float32"));
  EXPECT_THAT(message_of([&] { keys().get_bool("u8"); }), HasSubstr("found uint8, expected bool"));
  EXPECT_THAT(message_of([&] { keys().get_string("strings"); }),
              HasSubstr("found array of string, expected string"));
  EXPECT_THAT(message_of([&] { keys().get_strings("string"); }),
              HasSubstr("found string, expected array of string"));
  EXPECT_THAT(message_of([&] { keys().get_strings("ints"); }),
              HasSubstr("found array of int16, expected array of string"));
  EXPECT_THAT(message_of([&] { keys().get_i64s("floats"); }),
              HasSubstr("found array of float32, expected array of integers"));
  EXPECT_THAT(message_of([&] { keys().get_bools("ints"); }), HasSubstr("expected array of bool"));
}

// ---- files made by llama.cpp's converter, against gguf.json (the gguf package's view of them) and the
// checkpoint ----

void expect_value(const GgufMetadata& metadata, const std::string& key, const OrderedJson& value) {
  if (value.is_string()) {
    EXPECT_EQ(metadata.get_string(key), value.get<std::string>()) << key;
  } else if (value.is_boolean()) {
    EXPECT_EQ(metadata.get_bool(key), value.get<bool>()) << key;
  } else if (value.is_number_float()) {
    EXPECT_EQ(metadata.get_f32(key), value.get<float>()) << key;
  } else if (value.is_number()) {
    EXPECT_EQ(metadata.get_u64(key), value.get<std::uint64_t>()) << key;
  } else if (value.is_array() && !value.empty() && value[0].is_boolean()) {
    EXPECT_EQ(metadata.get_bools(key), value.get<std::vector<bool>>()) << key;
  } else if (value.is_array() && !value.empty() && value[0].is_number_integer()) {
    EXPECT_EQ(metadata.get_i64s(key), value.get<std::vector<std::int64_t>>()) << key;
  } else {
    ADD_FAILURE() << key << ": a kind of value that this test does not know: " << value.dump();
  }
}

class converter_file : public testing::TestWithParam<const char*> {};

TEST_P(converter_file, has_the_keys_and_tensors_that_the_gguf_package_sees) {
  const auto path = golden(std::string("gguf/") + GetParam());
  const auto listing = golden("gguf/gguf.json");
  HEIRLOOM_REQUIRE(path);
  HEIRLOOM_REQUIRE(listing);
  const GgufFile file(path);
  const OrderedJson all = parse_json(read_text_file(listing), "gguf.json");
  const OrderedJson& expected = all.at(GetParam());
  for (const auto& [key, value] : expected.at("kv").items()) expect_value(file.metadata(), key, value);
  ASSERT_EQ(file.names().size(), expected.at("tensors").size());
  for (const auto& [name, value] : expected.at("tensors").items()) {
    const TensorView& tensor = file.require(name);
    EXPECT_EQ(file.type_name(name), value.at(0).get<std::string>()) << name;
    auto dims = value.at(1).get<std::vector<std::uint64_t>>();
    EXPECT_EQ(tensor.shape, std::vector<std::uint64_t>(dims.rbegin(), dims.rend())) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(golden_kit, converter_file, testing::Values("dense_b-f16.gguf", "moe_a-f16.gguf"),
                         [](const auto& file) { return std::string(file.param).substr(0, 5); });

std::vector<float> values_of(const TensorView& tensor) {
  std::vector<float> out(tensor.elements());
  dequantize_row(tensor.type, tensor.data.data(), out.data(), out.size());
  return out;
}

TEST(converter_weights, holds_the_checkpoints_weights_where_the_mapping_is_plain) {
  const auto path = golden("gguf/dense_b-f16.gguf");
  const auto folder = golden("models/dense_b");
  HEIRLOOM_REQUIRE(path);
  HEIRLOOM_REQUIRE(folder);
  const GgufFile file(path);
  const SafetensorsFolder checkpoint(folder);
  // Names as in the kit's README; `plus_one` for the zero-centred norms.
  const struct {
    const char* gguf;
    const char* hf;
    bool plus_one;
  } kPairs[] = {
      {"token_embd.weight", "model.embed_tokens.weight", false},
      {"output_norm.weight", "model.norm.weight", true},
      {"blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight", true},
      {"blk.0.ffn_gate.weight", "model.layers.0.mlp.gate_proj.weight", false},
      {"blk.1.ffn_up.weight", "model.layers.1.mlp.up_proj.weight", false},
      {"blk.2.ffn_down.weight", "model.layers.2.mlp.down_proj.weight", false},
      {"blk.2.ssm_norm.weight", "model.layers.2.linear_attn.norm.weight", false},
      {"blk.3.attn_q.weight", "model.layers.3.self_attn.q_proj.weight", false},
      {"blk.3.attn_k.weight", "model.layers.3.self_attn.k_proj.weight", false},
      {"blk.3.attn_v.weight", "model.layers.3.self_attn.v_proj.weight", false},
      {"blk.3.attn_output.weight", "model.layers.3.self_attn.o_proj.weight", false},
      {"blk.3.attn_q_norm.weight", "model.layers.3.self_attn.q_norm.weight", true},
      {"blk.4.nextn.eh_proj.weight", "mtp.fc.weight", false},
  };
  for (const auto& pair : kPairs) {
    const TensorView& stored = file.require(pair.gguf);
    const TensorView& original = checkpoint.require(pair.hf);
    ASSERT_EQ(stored.shape, original.shape) << pair.gguf;
    const std::vector<float> actual = values_of(stored);
    std::vector<float> expected = values_of(original);
    for (std::size_t i = 0; i < actual.size(); ++i) {
      if (pair.plus_one) expected[i] += 1;
      if (stored.type == DType::f16) expected[i] = f16_to_f32(f32_to_f16(expected[i]));
      ASSERT_EQ(actual[i], expected[i]) << pair.gguf << " value " << i;
    }
  }
}

}  // namespace
}  // namespace heirloom
