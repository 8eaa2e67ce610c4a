// Files both ways between this project and the `gguf` and `safetensors` Python packages. Files that the
// packages wrote are in tests/golden/format. For the other way Python is asked to read what we write: the test
// environment's (scripts/make_test_venv.sh), else python3; the test is skipped where that Python lacks the package.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <memory>
#include <optional>

#include "base/json.h"
#include "format/gguf.h"
#include "format/gguf_writer.h"
#include "format/quant_blocks.h"
#include "format/safetensors.h"
#include "format/safetensors_writer.h"
#include "support/golden.h"
#include "support/temp_file.h"
#include "support/test_tools.h"

namespace heirloom {
namespace {

using test::golden;
using test::TempFile;
using testing::ElementsAre;

// What make_python_files.py calls `ramp`.
std::vector<float> ramp() {
  std::vector<float> out(96);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = (static_cast<float>(i) - 40) / 8;
  return out;
}

std::vector<float> values_of(const TensorView& tensor) {
  std::vector<float> out(tensor.elements());
  dequantize_row(tensor.type, tensor.data.data(), out.data(), out.size());
  return out;
}

TEST(python_exchange, reads_a_gguf_that_python_wrote) {
  const auto path = golden("format/python.gguf");
  HEIRLOOM_REQUIRE(path);
  const GgufFile file(path);
  const GgufMetadata& keys = file.metadata();
  EXPECT_EQ(keys.get_string("general.architecture"), "qwen35");
  EXPECT_EQ(keys.get_u64("t.u8"), 200u);
  EXPECT_EQ(keys.get_u64("t.u16"), 65'535u);
  EXPECT_EQ(keys.get_u64("t.u32"), 4'000'000'000u);
  EXPECT_EQ(keys.get_u64("t.u64"), 1ull << 40);
  for (const char* negative : {"t.i8", "t.i16", "t.i32", "t.i64"})
    EXPECT_THROW(keys.get_u64(negative), Error);
  EXPECT_EQ(keys.get_f32("t.f32"), 1.5f);
  EXPECT_EQ(keys.get_f32("t.f64"), 2.5f);
  EXPECT_TRUE(keys.get_bool("t.bool"));
  EXPECT_EQ(keys.get_string("t.string"), "häßlich\n");
  EXPECT_THAT(keys.get_strings("t.strings"), ElementsAre("a", "Ġb", "ccc"));
  EXPECT_THAT(keys.get_i64s("t.ints"), ElementsAre(-1, 300));
  EXPECT_THAT(keys.get_f32s("t.floats"), ElementsAre(0.5f, -2.0f));
  EXPECT_THAT(keys.get_bools("t.bools"), ElementsAre(true, false));
  for (const char* name : {"ramp.f32", "ramp.f16", "ramp.bf16"}) {
    EXPECT_THAT(file.require(name).shape, ElementsAre(3u, 32u)) << name;
    EXPECT_EQ(values_of(file.require(name)), ramp()) << name;
  }
  // The package's encoders equal ours byte for byte.
  for (const DType type : {DType::q8_0, DType::q4_0}) {
    const TensorView& tensor = file.require("ramp." + std::string(dtype_name(type)));
    std::vector<std::byte> ours(row_bytes(type, 96));
    quantize_row(type, ramp().data(), ours.data(), 96);
    EXPECT_TRUE(std::ranges::equal(tensor.data, ours)) << dtype_name(type);
  }
  EXPECT_EQ(file.require("ints").type, DType::i32);
}

TEST(python_exchange, reads_a_safetensors_file_that_python_wrote) {
  const auto path = golden("format/python.safetensors");
  HEIRLOOM_REQUIRE(path);
  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata().at("format"), "np");
  EXPECT_EQ(values_of(file.require("ramp")), ramp());
  EXPECT_THAT(file.require("half").shape, ElementsAre(3u, 3u));
  EXPECT_THAT(values_of(file.require("half")),
              ElementsAre(-5, -4.875, -4.75, -1, -0.875, -0.75, 3, 3.125, 3.25));
  EXPECT_EQ(file.require("bytes").data[4], std::byte{4});
  EXPECT_TRUE(file.require("scalar").shape.empty());
  EXPECT_EQ(file.require("scalar").data[0], std::byte{7});
  EXPECT_THAT(file.require("none").shape, ElementsAre(2u, 0u));
}

// What Python sees in `path`; nullopt when it lacks the package.
std::optional<OrderedJson> read_with_python(const std::filesystem::path& path) {
  const auto python = test::test_tool("test-venv/bin/python");
  const std::string command = (python.empty() ? "python3" : python.string()) +
                              " '" HEIRLOOM_SOURCE_DIR "/tests/format/read_with_python.py' '" +
                              path.string() + "' 2>&1";
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::string output;
  char buffer[4096];
  while (const std::size_t count = std::fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, count);
  const int status = ::pclose(pipe);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (code == 77 || code == 127) return std::nullopt;  // no package, no Python
  if (code != 0) throw std::runtime_error("Python failed: " + output);
  return parse_json(output, "python");
}

TEST(python_exchange, python_reads_a_gguf_written_here) {
  const TempFile temp("ours.gguf");
  GgufWriter writer(temp.path());
  writer.set("general.architecture", "qwen35");
  writer.set<std::uint8_t>("u8", 200);
  writer.set<std::int8_t>("i8", -1);
  writer.set<std::uint16_t>("u16", 65'535);
  writer.set<std::int16_t>("i16", -2);
  writer.set<std::uint32_t>("u32", 4'000'000'000);
  writer.set<std::int32_t>("i32", -7);
  writer.set<std::uint64_t>("u64", 1ull << 40);
  writer.set<std::int64_t>("i64", -5);
  writer.set("f32", 1.5f);
  writer.set("f64", 2.5);
  writer.set("bool", true);
  writer.set("string", "häßlich\n");
  const std::vector<std::string> strings = {"a", "Ġb", "ccc"};
  writer.set_array("strings", std::span<const std::string>(strings));
  const std::vector<std::int32_t> ints = {-1, 300};
  writer.set_array<std::int32_t>("ints", ints);
  const std::vector<float> floats = {0.5f, -2};
  writer.set_array<float>("floats", floats);
  writer.set_array("bools", std::vector<bool>{true, false});
  const DType kTypes[] = {DType::f32,  DType::f16,  DType::bf16,  DType::q4_0, DType::q4_1, DType::q5_0,
                          DType::q5_1, DType::q8_0, DType::mxfp4, DType::q4_k, DType::q5_k, DType::q6_k};
  std::vector<float> x(2 * 512);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>(static_cast<int>(i * 37 % 101) - 50) / 64;
  for (const DType type : kTypes) writer.add_tensor({std::string(dtype_name(type)), type, {2, 512}});
  writer.add_tensor({"small", DType::f32, {3}});
  writer.begin();
  for (const DType type : kTypes) {
    std::vector<std::byte> bytes(row_bytes(type, x.size()));
    quantize_row(type, x.data(), bytes.data(), x.size());
    writer.write(bytes);
  }
  writer.write(std::as_bytes(std::span(x).first(3)));
  writer.finish();

  const auto seen = read_with_python(temp.path());
  if (!seen) GTEST_SKIP() << "no Python with the gguf package";
  const OrderedJson& keys = seen->at("keys");
  EXPECT_EQ(
      keys.dump(),
      R"({"general.architecture":"qwen35","u8":200,"i8":-1,"u16":65535,"i16":-2,"u32":4000000000,"i32":-7,)"
      R"("u64":1099511627776,"i64":-5,"f32":1.5,"f64":2.5,"bool":true,"string":"häßlich\n","strings":["a","Ġb","ccc"],)"
      R"("ints":[-1,300],"floats":[0.5,-2.0],"bools":[true,false]})");
  EXPECT_EQ(seen->at("types").at("ints").dump(), R"(["ARRAY","INT32"])");
  const GgufFile file(temp.path());
  for (const std::string& name : file.names()) {
    const OrderedJson& tensor = seen->at("tensors").at(name);
    EXPECT_EQ(tensor.at(0), std::string(file.type_name(name))) << name;
    const TensorView& view = file.require(name);
    EXPECT_EQ(tensor.at(1).get<std::vector<std::uint64_t>>(),
              std::vector<std::uint64_t>(view.shape.rbegin(), view.shape.rend()));
    EXPECT_EQ(tensor.at(2).get<std::vector<float>>(), values_of(view)) << name;
  }
}

TEST(python_exchange, python_reads_a_safetensors_file_written_here) {
  const TempFile temp("ours.safetensors");
  const std::vector<float> x = ramp();
  const std::vector<std::uint8_t> bytes = {1, 2, 3};
  const std::vector<std::int64_t> wide = {-1, 1ll << 40};
  write_safetensors(temp.path(),
                    {{"bytes", DType::u8, {3}, std::as_bytes(std::span(bytes))},
                     {"ramp", DType::f32, {3, 32}, std::as_bytes(std::span(x))},
                     {"wide", DType::i64, {2, 1}, std::as_bytes(std::span(wide))}},
                    {{"format", "pt"}});
  const auto seen = read_with_python(temp.path());
  if (!seen) GTEST_SKIP() << "no Python with the safetensors package";
  EXPECT_EQ(seen->at("keys").dump(), R"({"format":"pt"})");
  EXPECT_EQ(seen->at("tensors").at("bytes").dump(), R"(["uint8",[3],[1.0,2.0,3.0]])");
  EXPECT_EQ(seen->at("tensors").at("wide").dump(), R"(["int64",[2,1],[-1.0,1099511627776.0]])");
  EXPECT_EQ(seen->at("tensors").at("ramp").at(2).get<std::vector<float>>(), x);
}

}  // namespace
}  // namespace heirloom
