// The program run as its users run it, for tests of the command line.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace heirloom::test {

namespace fs = std::filesystem;

inline const fs::path kSource = HEIRLOOM_SOURCE_DIR;

struct Output {
  int code = -1;  // 128 + signal if it was killed
  std::string out, err;
};

inline std::string read_all(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// Runs `heirloom ARGUMENTS` through the shell, with `input` on standard input; `runner` is put in front (an emulator).
inline Output heirloom(const std::string& arguments, const std::string& input = "", const std::string& runner = "") {
  static int number = 0;
  const fs::path base = fs::temp_directory_path() / ("heirloom-cli-" + std::to_string(::getpid()) + "-" + std::to_string(number++));
  const fs::path in = base.string() + ".in", out = base.string() + ".out", err = base.string() + ".err";
  std::ofstream(in, std::ios::binary) << input;
  const std::string command = runner + HEIRLOOM_BINARY_DIR + "/heirloom " + arguments + " <" + in.string() + " >" +
                              out.string() + " 2>" + err.string();
  const int status = std::system(command.c_str());
  Output output{WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_all(out), read_all(err)};
  for (const fs::path& path : {in, out, err}) fs::remove(path);
  return output;
}

inline std::string quoted(const fs::path& path) {
  std::string text = "'";
  text += path.string();
  text += "'";
  return text;
}

/// A file with the given bytes that is gone when the test ends.
struct TemporaryFile {
  fs::path path;
  explicit TemporaryFile(const std::string& name, const std::string& bytes = "")
      : path(fs::temp_directory_path() / (std::to_string(::getpid()) + "-" + name)) {
    if (!bytes.empty()) std::ofstream(path, std::ios::binary) << bytes;
  }
  ~TemporaryFile() { fs::remove(path); }
};

}  // namespace heirloom::test
