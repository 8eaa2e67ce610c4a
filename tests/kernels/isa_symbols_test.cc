// ISA hygiene: an object file compiled for an ISA tier must define no weak symbol. The linker keeps one copy of a weak
// symbol (an inline function of a shared header, say); if that copy came from an AVX2 object, an old CPU would crash in code
// that has nothing to do with kernels (pytorch #14436).
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace heirloom::test {
namespace {

const std::vector<std::string> kTiers{"ssse3", "avx2", "avx512", "avx512_vnni", "amx"};

/// Lines of `nm -A` over the archive: "archive:member.o:value type name".
std::vector<std::string> symbols(const std::string& archive) {
  std::vector<std::string> lines;
  FILE* pipe = popen(("nm -A '" + archive + "' 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return lines;
  std::string line;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) {
    if (c != '\n') {
      line += static_cast<char>(c);
      continue;
    }
    lines.push_back(line);
    line.clear();
  }
  pclose(pipe);
  return lines;
}

/// The tier in a member's name ("norm_avx2.cc.o" -> "avx2"), or empty.
std::string tier_of(const std::string& line) {
  for (const std::string& tier : kTiers) {
    if (line.find("_" + tier + ".cc.o:") != std::string::npos) return tier;
  }
  return "";
}

TEST(isa_symbols, objects_of_a_tier_define_no_weak_symbols) {
  const std::string archive = std::string(HEIRLOOM_BINARY_DIR) + "/libheirloom_backend_cpu.a";
  if (!std::filesystem::exists(archive)) GTEST_SKIP() << archive << " is not here";
  const std::vector<std::string> lines = symbols(archive);
  if (lines.empty()) GTEST_SKIP() << "no nm on this machine";
  int seen = 0;
  for (const std::string& line : lines) {
    if (tier_of(line).empty()) continue;
    ++seen;
    std::istringstream rest(line.substr(line.find(".cc.o:") + 6));
    std::string value, type, name;
    rest >> value >> type >> name;
    if (name.empty()) {  // undefined symbols have no value
      name = type;
      type = value;
    }
    // Upper-case W and V, and u, are definitions (lower-case w, v: references). DW.ref.* are pointers of the unwinder, and the
    // sanitizers add data and constructors of their own: no instructions in either.
    if (type != "W" && type != "V" && type != "u") continue;
    const bool data_only = name.starts_with("DW.ref.") || name.find("san") != std::string::npos;
    EXPECT_TRUE(data_only) << "weak symbol in an ISA object: " << line;
  }
  EXPECT_GT(seen, 50) << "the archive holds no ISA objects, or their names have changed";
}

TEST(isa_symbols, files_of_a_tier_include_only_intrinsics_and_kernel_headers) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(HEIRLOOM_SOURCE_DIR) / "src/backend/cpu/kernels";
  int seen = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    bool isa_file = false;
    for (const std::string& tier : kTiers) isa_file |= name.ends_with("_" + tier + ".cc") || name == "simd_" + tier + ".h";
    if (!isa_file) continue;
    ++seen;
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      if (!line.starts_with("#include")) continue;
      const std::string what = line.substr(9);
      const bool allowed = what == "<cstdint>" || what == "<cstddef>" || what.ends_with("intrin.h>") ||
                           what.starts_with("\"backend/cpu/kernels/") || what.starts_with("\"backend/cpu/weight/packed_layout.h");
      EXPECT_TRUE(allowed) << name << ": " << line;
    }
  }
  EXPECT_GT(seen, 10);
}

}  // namespace
}  // namespace heirloom::test
