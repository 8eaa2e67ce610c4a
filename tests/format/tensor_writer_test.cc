// Files written here: read back by our readers, left whole or not at all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>

#include "format/gguf.h"
#include "format/gguf_writer.h"
#include "format/safetensors.h"
#include "format/safetensors_writer.h"
#include "support/temp_file.h"

namespace heirloom {
namespace {

using test::TempFile;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::byte> pattern(std::size_t bytes, unsigned seed) {
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(seed + i * 7);
  return out;
}

bool equal(std::span<const std::byte> a, const std::vector<std::byte>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), b.size()) == 0;
}

ErrorKind kind_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "no error";
  return ErrorKind::internal;
}

std::size_t files_beside(const std::filesystem::path& path) {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path.parent_path())) {
    count += entry.path().filename().string().starts_with(path.filename().string()) ? 1u : 0u;
  }
  return count;
}

TEST(gguf_writer, writes_metadata_of_every_type) {
  const TempFile temp("keys.gguf");
  GgufWriter writer(temp.path());
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
  writer.set("string", "text");
  const std::vector<std::string> strings = {"a", "", "ccc"};
  writer.set_array("strings", std::span<const std::string>(strings));
  const std::vector<std::int32_t> ints = {-1, 300};
  writer.set_array<std::int32_t>("ints", ints);
  const std::vector<float> floats = {0.5f, -2};
  writer.set_array<float>("floats", floats);
  writer.set_array("bools", std::vector<bool>{true, false, true});
  writer.begin();
  writer.finish();

  const GgufFile file(temp.path());
  const GgufMetadata& keys = file.metadata();
  EXPECT_EQ(file.version(), 3u);
  const std::vector<std::string> types = {
      "uint8",           "int8",           "uint16",           "int16",        "uint32", "int32",
      "uint64",          "int64",          "float32",          "float64",      "bool",   "string",
      "array of string", "array of int32", "array of float32", "array of bool"};
  ASSERT_EQ(keys.entries().size(), types.size());
  for (std::size_t i = 0; i < types.size(); ++i) EXPECT_EQ(keys.entries()[i].type_name(), types[i]);
  EXPECT_EQ(keys.get_u64("u8"), 200u);
  EXPECT_EQ(keys.get_u64("u64"), 1ull << 40);
  EXPECT_EQ(keys.get_f32("f32"), 1.5f);
  EXPECT_EQ(keys.get_f32("f64"), 2.5f);
  EXPECT_TRUE(keys.get_bool("bool"));
  EXPECT_EQ(keys.get_string("string"), "text");
  EXPECT_THAT(keys.get_strings("strings"), ElementsAre("a", "", "ccc"));
  EXPECT_THAT(keys.get_i64s("ints"), ElementsAre(-1, 300));
  EXPECT_THAT(keys.get_f32s("floats"), ElementsAre(0.5f, -2.0f));
  EXPECT_THAT(keys.get_bools("bools"), ElementsAre(true, false, true));
}

TEST(gguf_writer, replaces_erases_and_copies_keys) {
  const TempFile first("first.gguf"), second("second.gguf");
  GgufWriter writer(first.path());
  writer.set<std::uint32_t>("a", 1);
  writer.set("b", "old");
  writer.set<std::uint32_t>("general.alignment", 32);
  writer.set<std::uint16_t>("split.count", 1);
  writer.set_array("c", std::vector<bool>{true});
  writer.set("b", "new");
  writer.erase("a");
  writer.erase("absent");
  writer.begin();
  writer.finish();

  const GgufFile file(first.path());
  GgufWriter copy(second.path());
  for (const GgufEntry& entry : file.metadata().entries()) copy.copy(entry);
  EXPECT_FALSE(copy.has("general.alignment"));
  EXPECT_FALSE(copy.has("split.count"));
  copy.begin();
  copy.finish();
  const GgufFile copied(second.path());
  ASSERT_EQ(copied.metadata().entries().size(), 2u);
  EXPECT_EQ(copied.metadata().get_string("b"), "new");
  EXPECT_THAT(copied.metadata().get_bools("c"), ElementsAre(true));
}

TEST(gguf_writer, streams_tensors_in_pieces_of_any_size_and_reports_progress) {
  const TempFile temp("tensors.gguf");
  GgufWriter writer(temp.path());
  writer.add_tensor({"odd", DType::i8, {3, 11}});
  writer.add_tensor({"blocks", DType::q4_k, {2, 512}});
  writer.add_tensor({"scalar", DType::f32, {}});
  const std::vector<std::vector<std::byte>> data = {pattern(33, 1), pattern(2 * 288, 2), pattern(4, 3)};
  std::vector<std::byte> all;
  for (const auto& part : data) all.insert(all.end(), part.begin(), part.end());
  std::uint64_t done = 0, total = 0;
  writer.on_progress([&](std::uint64_t d, std::uint64_t t) {
    EXPECT_GE(d, done);
    done = d;
    total = t;
  });
  EXPECT_EQ(writer.begin().size(), 3u);
  for (std::size_t at = 0; at < all.size(); at += 100) {
    writer.write(std::span(all).subspan(at, std::min<std::size_t>(100, all.size() - at)));
  }
  EXPECT_EQ(done, all.size());
  EXPECT_EQ(total, all.size());
  writer.finish();

  const GgufFile file(temp.path());
  EXPECT_THAT(file.names(), ElementsAre("odd", "blocks", "scalar"));
  EXPECT_THAT(file.require("blocks").shape, ElementsAre(2u, 512u));
  EXPECT_EQ(file.require("blocks").type, DType::q4_k);
  for (std::size_t i = 0; i < data.size(); ++i)
    EXPECT_TRUE(equal(file.require(file.names()[i]).data, data[i])) << i;
}

TEST(gguf_writer, refuses_what_the_format_cannot_hold) {
  const TempFile temp("refused.gguf");
  GgufWriter writer(temp.path());
  writer.add_tensor({"t", DType::f32, {4}});
  const TensorSpec kBad[] = {{"t", DType::f32, {4}},
                             {std::string(64, 'n'), DType::f32, {4}},
                             {"d", DType::f32, {1, 1, 1, 1, 1}},
                             {"e", DType::f32, {0}},
                             {"u", DType::u8, {4}},
                             {"q", DType::q4_k, {128}},
                             {"w", DType::f32, {1ull << 40, 1ull << 40}}};
  for (const TensorSpec& spec : kBad) {
    EXPECT_EQ(kind_of([&] { writer.add_tensor(spec); }), ErrorKind::usage) << spec.name;
  }
}

TEST(tensor_writer, leaves_nothing_behind_when_it_is_not_finished) {
  const TempFile temp("unfinished.gguf");
  {
    GgufWriter writer(temp.path());
    writer.add_tensor({"t", DType::f32, {1 << 20}});
    writer.begin();
    writer.write(pattern(3 << 20, 0));
    EXPECT_EQ(files_beside(temp.path()), 1u);  // the partial file
    EXPECT_FALSE(std::filesystem::exists(temp.path()));
    EXPECT_EQ(kind_of([&] { writer.finish(); }), ErrorKind::internal);
  }
  EXPECT_EQ(files_beside(temp.path()), 0u);
}

TEST(tensor_writer, keeps_the_old_file_until_the_new_one_is_whole) {
  const TempFile temp("kept.gguf", "old");
  {
    GgufWriter writer(temp.path());
    writer.begin();
  }
  EXPECT_EQ(std::filesystem::file_size(temp.path()), 3u);
  GgufWriter writer(temp.path());
  writer.begin();
  writer.finish();
  EXPECT_NO_THROW(GgufFile(temp.path()));
}

TEST(tensor_writer, says_where_it_cannot_write) {
  EXPECT_EQ(kind_of([] { GgufWriter("/nonexistent/folder/x.gguf").begin(); }), ErrorKind::usage);
  EXPECT_EQ(kind_of([] { GgufWriter(std::filesystem::temp_directory_path()).begin(); }), ErrorKind::usage);
}

// A file size limit stands in for a full disk: both reach the writer as a failing write(2).
TEST(tensor_writer, reports_a_full_disk_and_removes_the_partial_file) {
  const TempFile temp("full.gguf");
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small{1 << 20, old.rlim_max};
  auto* const old_handler = std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &small);
  const ErrorKind kind = kind_of([&] {
    GgufWriter writer(temp.path());
    writer.add_tensor({"t", DType::f32, {1 << 20}});
    writer.begin();
    writer.write(pattern(4 << 20, 0));
    writer.finish();
  });
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(kind, ErrorKind::does_not_fit);
  EXPECT_EQ(files_beside(temp.path()), 0u);
}

TEST(safetensors_writer, writes_what_the_reader_reads) {
  const TempFile temp("written.safetensors");
  const std::vector<std::byte> a = pattern(6, 1), b = pattern(8, 2), c = pattern(16, 3);
  write_safetensors(temp.path(),
                    {{"half", DType::bf16, {3}, a},
                     {"n\"a\\me\n\xc3\xa9", DType::f32, {2, 1}, b},
                     {"wide", DType::i64, {2}, c},
                     {"none", DType::f32, {0}, {}}},
                    {{"format", "pt"}, {"note", "quote \" here"}});
  const SafetensorsFile file(temp.path());
  EXPECT_EQ(file.metadata().at("note"), "quote \" here");
  EXPECT_TRUE(equal(file.require("half").data, a));
  EXPECT_TRUE(equal(file.require("n\"a\\me\n\xc3\xa9").data, b));
  EXPECT_TRUE(equal(file.require("wide").data, c));
  EXPECT_EQ(file.require("none").elements(), 0u);
  // Every tensor is aligned to its element, however the names are ordered.
  for (const std::string& name : file.names()) {
    const TensorView& tensor = file.require(name);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data.data()) % dtype_info(tensor.type).block_bytes, 0u)
        << name;
  }
}

TEST(safetensors_writer, refuses_what_the_format_cannot_hold) {
  SafetensorsWriter writer("unused.safetensors");
  EXPECT_EQ(kind_of([&] { writer.add_tensor({"q", DType::q8_0, {32}}); }), ErrorKind::usage);
  EXPECT_EQ(kind_of([&] { writer.add_tensor({"__metadata__", DType::f32, {1}}); }), ErrorKind::usage);
  EXPECT_EQ(kind_of([&] { writer.add_tensor({"bad\xff", DType::f32, {1}}); }), ErrorKind::usage);
}

}  // namespace
}  // namespace heirloom
