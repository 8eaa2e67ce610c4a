// The disk tier through the scheduler: what survives a restart, and everything that must not.
#include "engine/disk_tier.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <map>

#include "base/log.h"
#include "engine/engine_fixture.h"

namespace heirloom::test {
namespace {

namespace fs = std::filesystem;

class disk_tier : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("heirloom-disk-{}-{}", ::getpid(),
                                                      testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    options_.disk_folder = folder_;
    options_.cache_bytes = 4 << 20;
  }
  void TearDown() override { fs::remove_all(folder_); }

  static Answer ask(EngineFixture& fixture, const Ids& ids, int tokens = 6) { return test::ask(fixture, text_prompt(ids), tokens); }
  static std::vector<float> cold(const Ids& ids, int tokens = 6) { return ask_cold(text_prompt(ids), tokens).numbers; }
  static std::string snapshot_name(const Ids& ids) {
    const engine::Prompt prompt = text_prompt(ids);
    return engine::hex(engine::chain_key(engine::Key128{}, std::as_bytes(std::span(prompt.symbols))));
  }
  static Ids followed(Ids ids, std::uint32_t seed) {
    const Ids more = random_ids(20, seed);
    ids.insert(ids.end(), more.begin(), more.end());
    return ids;
  }
  std::vector<fs::path> files(const std::string& extension) const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      if (entry.path().extension() == extension) found.push_back(entry.path());
    }
    return found;
  }

  fs::path folder_;
  EngineFixture::Options options_;
};

TEST_F(disk_tier, a_restart_resumes_exactly_at_every_depth) {  // case C02
  for (const std::size_t depth : {1u, 31u, 32u, 33u, 63u, 64u, 65u, 2047u, 2048u, 2049u}) {
    const Ids ids = random_ids(depth, static_cast<std::uint32_t>(depth));
    { EngineFixture before(options_); ask(before, ids, 1); }
    EngineFixture after(options_);
    const Answer answer = ask(after, followed(ids, 9));
    EXPECT_EQ(answer.cached, static_cast<std::int64_t>(depth));
    EXPECT_EQ(answer.numbers, cold(followed(ids, 9))) << depth;
    const auto rows = after.model.rows_run.load();
    EXPECT_EQ(ask(after, ids, 1).cached, static_cast<std::int64_t>(depth));  // with its logits
    EXPECT_EQ(after.model.rows_run, rows);
  }
}

TEST_F(disk_tier, works_without_the_memory_tier) {
  options_.cache_bytes = 0;
  const Ids ids = random_ids(500, 1);
  { EngineFixture before(options_); ask(before, ids); }
  EngineFixture after(options_);
  EXPECT_EQ(ask(after, ids).cached, 500);
}

TEST_F(disk_tier, pages_are_written_once_for_all_snapshots) {
  EngineFixture fixture(options_);
  Ids ids = random_ids(650, 2);
  for (std::uint32_t i = 0; i < 5; ++i) ask(fixture, ids = followed(ids, i));
  fixture.scheduler.reset();
  fixture.cache.reset();
  EXPECT_EQ(files(".page").size(), 11u);  // 750 tokens; no answer fills a page of its own
}

TEST_F(disk_tier, one_flipped_byte_anywhere_is_never_trusted) {  // case C06
  log::set_level(log::Level::error);  // one warning for each of the hundred damaged files
  const Ids ids = random_ids(150, 3);
  { EngineFixture before(options_); ask(before, ids, 1); }
  const std::vector<float> expected = cold(followed(ids, 4));
  const fs::path backup = folder_.string() + "-copy";
  fs::remove_all(backup);
  fs::copy(folder_, backup, fs::copy_options::recursive);
  std::vector<fs::path> all = files(".snap");
  for (const fs::path& page : files(".page")) all.push_back(page);
  ASSERT_EQ(all.size(), 3u);  // the end of the prompt and its two full pages
  std::mt19937 random(1);
  for (const fs::path& file : all) {
    const auto size = static_cast<std::uint32_t>(fs::file_size(file));
    std::vector<std::uint32_t> places = {0, 8, 12, 16, 32, 48, 56, 60, 64, 72, 80, size - 1};
    for (int i = 0; i < 6; ++i) places.push_back(static_cast<std::uint32_t>(random() % size));
    for (const std::uint32_t place : places) {
      if (place >= size) continue;
      fs::remove_all(folder_);
      fs::copy(backup, folder_, fs::copy_options::recursive);
      std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
      stream.seekg(place);
      const char byte = static_cast<char>(stream.get() ^ 0x41);
      stream.seekp(place);
      stream.put(byte);
      stream.close();
      EngineFixture after(options_);
      EXPECT_EQ(ask(after, followed(ids, 4)).numbers, expected) << file << " byte " << place;
    }
    fs::remove_all(folder_);
    fs::copy(backup, folder_, fs::copy_options::recursive);
    fs::resize_file(file, size / 2);
    EngineFixture after(options_);
    EXPECT_EQ(ask(after, followed(ids, 4)).numbers, expected) << file << " cut in half";
  }
  fs::remove_all(backup);
  log::set_level(log::Level::info);
}

TEST_F(disk_tier, files_of_another_model_are_ignored) {
  const Ids ids = random_ids(150, 3);
  { EngineFixture before(options_); ask(before, ids); }
  options_.model_key[0] = 7;
  {
    EngineFixture other(options_);
    EXPECT_EQ(ask(other, ids).cached, 0);
  }
  // Even when somebody copies them into the right folder.
  fs::path own, foreign;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    (entry.path().filename().string().starts_with("07") ? own : foreign) = entry.path();
  }
  fs::remove_all(own);
  fs::copy(foreign, own);
  EngineFixture after(options_);
  const Answer answer = ask(after, ids);
  EXPECT_EQ(answer.cached, 0);
  EXPECT_EQ(answer.numbers, cold(ids));
}

TEST_F(disk_tier, a_folder_that_cannot_be_written_costs_one_warning_and_no_answer) {
  std::ofstream(folder_) << "a file where the folder should be";
  testing::internal::CaptureStderr();
  {
    EngineFixture fixture(options_);
    const Ids ids = random_ids(150, 3);
    EXPECT_EQ(ask(fixture, ids).numbers, cold(ids));
    EXPECT_EQ(ask(fixture, ids).cached, 150);
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(log, '\n'), 1) << log;
}

TEST_F(disk_tier, a_full_disk_costs_one_warning_and_no_answer) {
  // A file size limit fails writes as a full disk does.
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{200, 200};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    bool good = true;
    {
      EngineFixture fixture(options_);
      const Ids ids = random_ids(300, 3);
      good = ask(fixture, ids).numbers == cold(ids) && ask(fixture, ids).cached == 300;
    }
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(files(".snap").empty());
  for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("tmp-")) << entry.path();
  }
}

/// Runs `body` in a process that sees its own mounts; its exit code is 0 if `body` returns true. nullopt: not allowed here.
template <typename Body>
std::optional<int> in_own_mounts(Body&& body) {
  constexpr int kNotAllowed = 77;
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) ::_exit(kNotAllowed);
    ::_exit(body() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotAllowed) return std::nullopt;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

TEST_F(disk_tier, a_really_full_disk_costs_one_warning_and_what_is_there_stays_of_use) {  // case C06
  fs::create_directories(folder_);
  const auto code = in_own_mounts([&] {
    if (::mount("tmpfs", folder_.c_str(), "tmpfs", 0, "size=64k") != 0) return false;
    const Ids small = random_ids(100, 1);
    { EngineFixture fixture(options_); ask(fixture, small, 1); }
    bool good = true;
    testing::internal::CaptureStderr();
    {
      EngineFixture fixture(options_);
      for (std::uint32_t i = 0; i < 5; ++i) good = good && ask(fixture, random_ids(3000, i)).numbers == cold(random_ids(3000, i));
    }
    const std::string log = testing::internal::GetCapturedStderr();
    good = good && std::ranges::count(log, '\n') == 1 && log.find("going on without writing") != std::string::npos;
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) good = good && !entry.path().filename().string().starts_with("tmp-");
    EngineFixture after(options_);
    return good && ask(after, small, 1).cached == 100;
  });
  if (!code) GTEST_SKIP() << "this process may not mount";
  EXPECT_EQ(*code, 0);
}

TEST_F(disk_tier, a_read_only_folder_is_read_and_costs_one_warning) {  // case C06
  const Ids known = random_ids(200, 1), other = random_ids(200, 2);
  { EngineFixture fixture(options_); ask(fixture, known, 1); }
  const auto code = in_own_mounts([&] {
    if (::mount(folder_.c_str(), folder_.c_str(), nullptr, MS_BIND, nullptr) != 0 ||
        ::mount("none", folder_.c_str(), nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr) != 0) {
      return false;
    }
    testing::internal::CaptureStderr();
    bool good = true;
    {
      EngineFixture fixture(options_);
      const Answer hit = ask(fixture, followed(known, 3));
      good = hit.cached == 200 && hit.numbers == cold(followed(known, 3));
      good = good && ask(fixture, other).numbers == cold(other) && ask(fixture, other).cached == 200;
    }
    const std::string log = testing::internal::GetCapturedStderr();
    return good && std::ranges::count(log, '\n') == 1 && log.find("Read-only file system") != std::string::npos;
  });
  if (!code) GTEST_SKIP() << "this process may not mount";
  EXPECT_EQ(*code, 0);
}

TEST_F(disk_tier, each_file_that_cannot_be_used_is_one_line_with_the_reason) {  // case C06
  const Ids ids = random_ids(150, 3);
  { EngineFixture before(options_); ask(before, ids, 1); }
  const std::vector<float> expected = cold(followed(ids, 4));
  const fs::path backup = folder_.string() + "-copy";
  fs::remove_all(backup);
  fs::copy(folder_, backup, fs::copy_options::recursive);
  const auto overwrite = [](const fs::path& file, std::streamoff place, const std::string& bytes) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(place);
    stream << bytes;
  };
  const fs::path snap = files(".snap").front(), page = files(".page").front();
  const std::map<std::string, std::function<void()>> ways = {
      {"not a state file", [&] { overwrite(snap, 0, "GGUF"); }},
      {"state format 9", [&] { overwrite(snap, 8, std::string("\x09\0\0\0", 4)); }},
      {"damaged header", [&] { overwrite(snap, 32, "X"); }},
      {"damaged or cut off", [&] { fs::resize_file(snap, fs::file_size(snap) - 1); }},
      {"region 2 is damaged", [&] { overwrite(snap, 56 + 6 * 32 + 16 + 1, "zz"); }},
      {"cannot open", [&] { fs::remove(page); }},
      {"damaged or cut off ", [&] { fs::resize_file(page, 70); }},
  };
  for (const auto& [reason, damage] : ways) {
    fs::remove_all(folder_);
    fs::copy(backup, folder_, fs::copy_options::recursive);
    damage();
    testing::internal::CaptureStderr();
    {
      EngineFixture after(options_);
      EXPECT_EQ(ask(after, followed(ids, 4)).numbers, expected) << reason;
    }
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_EQ(std::ranges::count(log, '\n'), 1) << reason << "\n" << log;
    EXPECT_NE(log.find(reason.substr(0, reason.find_last_not_of(' ') + 1)), std::string::npos) << reason << "\n" << log;
  }
  fs::remove_all(backup);
}

TEST_F(disk_tier, after_a_kill_the_prompt_is_there_and_only_the_new_tail_is_computed) {  // case C02
  const Ids ids = random_ids(2000, 7), longer = followed(ids, 8);
  const pid_t child = ::fork();
  if (child == 0) {
    EngineFixture fixture(options_);
    ask(fixture, ids, 1);
    ::pause();  // alive and idle when it is killed
  }
  for (int i = 0; i < 1000; ++i) {
    std::error_code missing;
    bool written = false;
    for (const auto& entry : fs::recursive_directory_iterator(folder_, missing)) {
      written = written || (entry.path().extension() == ".snap" && entry.path().filename().string().starts_with(snapshot_name(ids)));
    }
    if (written) break;
    ::usleep(10'000);
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EngineFixture after(options_);
  const auto rows = after.model.rows_run.load();
  const Answer answer = ask(after, longer, 1);
  EXPECT_EQ(answer.cached, 2000);
  EXPECT_EQ(after.model.rows_run - rows, 20u);
  EXPECT_EQ(answer.numbers, cold(longer, 1));
}

TEST_F(disk_tier, a_kill_at_any_moment_loses_only_what_was_being_written) {
  for (const int wait_ms : {1, 5, 15, 40}) {
    fs::remove_all(folder_);
    const pid_t child = ::fork();
    if (child == 0) {
      EngineFixture fixture(options_);
      for (std::uint32_t i = 0; i < 10000; ++i) ask(fixture, random_ids(400, i), 2);
      ::_exit(0);
    }
    ::usleep(static_cast<useconds_t>(wait_ms * 1000));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    testing::internal::CaptureStderr();
    {
      EngineFixture after(options_);
      for (std::uint32_t i = 0; i < 5; ++i) ASSERT_EQ(ask(after, random_ids(400, i)).numbers, cold(random_ids(400, i)));
    }
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");  // nothing half-written has a name
  }
}

TEST_F(disk_tier, two_processes_share_a_folder) {
  std::vector<pid_t> children;
  for (std::uint32_t c = 0; c < 2; ++c) {
    children.push_back(::fork());
    if (children.back() == 0) {
      bool good = true;
      options_.disk_bytes = 300'000;  // both also trim
      {
        EngineFixture fixture(options_);
        std::mt19937 random(c);
        for (int i = 0; i < 60; ++i) {
          const Ids ids = random_ids(100 + random() % 300, static_cast<std::uint32_t>(random() % 20));
          good = good && ask(fixture, ids).numbers == cold(ids);
        }
      }
      ::_exit(good ? 0 : 1);
    }
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

TEST_F(disk_tier, the_folder_stays_within_its_budget_and_keeps_the_newest) {
  options_.disk_bytes = 200'000;
  Ids last;
  {
    EngineFixture fixture(options_);
    for (std::uint32_t i = 0; i < 80; ++i) ask(fixture, last = random_ids(300, i), 1);
  }
  std::uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  EXPECT_LE(bytes, 200'000u);
  EXPECT_GT(bytes, 100'000u);
  EngineFixture after(options_);
  EXPECT_EQ(ask(after, last, 1).cached, 300);
  EXPECT_EQ(ask(after, random_ids(300, 0), 1).cached, 0);
}

TEST_F(disk_tier, what_other_processes_left_half_written_is_removed) {
  { EngineFixture fixture(options_); ask(fixture, random_ids(100, 1)); }
  const fs::path inside = files(".snap").front().parent_path();
  std::ofstream(inside / "tmp-999999999-1") << "half";
  std::ofstream(inside / fmt::format("tmp-{}-1", ::getppid())) << "in use";
  { EngineFixture fixture(options_); }
  EXPECT_FALSE(fs::exists(inside / "tmp-999999999-1"));
  EXPECT_TRUE(fs::exists(inside / fmt::format("tmp-{}-1", ::getppid())));
}

}  // namespace
}  // namespace heirloom::test
