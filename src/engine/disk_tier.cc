#include "engine/disk_tier.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace heirloom::engine {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kPageTokens = ops::StateShape::kPageTokens;
// A context of a million tokens; more in a file is damage.
constexpr std::uint64_t kMaxSymbols = 1u << 24;
constexpr std::uint64_t kMaxPinnedBytes = 256ull << 20;
constexpr std::size_t kAlwaysQueued = 4;
constexpr std::uint64_t kRecordOverhead = 512;  // header and table of a file
constexpr std::chrono::hours kOtherModelRest{1};

enum Region : std::uint32_t { kMeta = 1, kSymbols = 2, kConv = 3, kRecurrent = 4, kTail = 5, kLogits = 6, kPage = 7, kHistories = 8 };

struct Meta {
  std::uint64_t position;
  std::uint32_t kind;
  std::uint32_t has_logits;
};

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

std::size_t tail_bytes(const ops::StateShape& shape, std::int64_t position) {
  return shape.page_bytes() / static_cast<std::size_t>(kPageTokens) * static_cast<std::size_t>(position % kPageTokens);
}

/// The process that a temporary file's name tells of, if it is still there.
bool owner_alive(const std::string& name) {
  int pid = 0;
  const char* begin = name.data() + std::strlen("tmp-");
  if (std::from_chars(begin, name.data() + name.size(), pid).ec != std::errc() || pid <= 0) return false;
  return ::kill(pid, 0) == 0 || errno == EPERM;
}

}  // namespace

DiskTier::DiskTier(Options options) : options_(std::move(options)), root_(options_.folder) {
  options_.folder = root_ / hex(options_.model);
  std::error_code error;
  fs::create_directories(options_.folder, error);
  if (error || !fs::is_directory(options_.folder)) {
    stop_writing(fmt::format("{}: cannot be used as a folder ({})", options_.folder.string(), error.message()));
  } else {
    remove_leftovers();
  }
  thread_ = std::thread([this] { run(); });
}

DiskTier::~DiskTier() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void DiskTier::stop_writing(const std::string& reason) {
  if (writable_.exchange(false)) log::warning("prefix cache on disk: {}; going on without writing there", reason);
}

void DiskTier::remove_leftovers() {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(options_.folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("tmp-") && !owner_alive(name)) fs::remove(entry.path(), error);
  }
}

std::vector<Key128> DiskTier::page_keys(std::span<const Symbol> symbols, std::span<const std::uint64_t> histories) const {
  std::vector<Key128> keys;
  Key128 key = options_.model;
  for (std::size_t i = 0; i + kPageTokens <= symbols.size(); i += kPageTokens) {
    key = chain_key(key, std::as_bytes(symbols.subspan(i, kPageTokens)));
    if (!histories.empty() && histories[keys.size()] != 0) key = chain_key(key, std::as_bytes(histories.subspan(keys.size(), 1)));
    keys.push_back(key);
  }
  return keys;
}

std::vector<std::uint64_t> DiskTier::read_histories(const RecordReader& reader, std::size_t position) {
  if (!reader.has(kHistories)) return {};
  std::vector<std::uint64_t> histories(position / static_cast<std::size_t>(kPageTokens) + 1);
  const std::vector<std::byte> bytes = reader.read(kHistories, histories.size() * sizeof(std::uint64_t));
  std::memcpy(histories.data(), bytes.data(), bytes.size());
  return histories;
}

DiskTier::Found DiskTier::read_index(const fs::path& path) const {
  const RecordReader reader(path, options_.model);
  Meta meta;
  const std::vector<std::byte> meta_bytes = reader.read(kMeta, sizeof(meta));
  std::memcpy(&meta, meta_bytes.data(), sizeof(meta));
  if (meta.position == 0 || meta.position > kMaxSymbols || meta.kind > static_cast<std::uint32_t>(SnapshotKind::turn_end)) {
    fail(ErrorKind::bad_file, "{}: damaged", path.string());
  }
  Found found;
  found.symbols.resize(meta.position);
  const std::vector<std::byte> symbols = reader.read(kSymbols, meta.position * sizeof(Symbol));
  std::memcpy(found.symbols.data(), symbols.data(), symbols.size());
  found.copy = {path.filename().string(), meta.has_logits != 0};
  found.kind = static_cast<SnapshotKind>(meta.kind);
  found.histories = read_histories(reader, found.symbols.size());
  return found;
}

/// Folders of other models under the same root with their bytes, the one written longest ago first.
std::vector<std::pair<fs::path, std::uint64_t>> DiskTier::other_models() const {
  std::vector<std::tuple<fs::file_time_type, fs::path, std::uint64_t>> found;
  std::error_code error;
  for (const fs::directory_entry& folder : fs::directory_iterator(root_, error)) {
    std::error_code ignored;
    if (!folder.is_directory(ignored) || folder.path() == options_.folder || folder.path().filename().string().size() != 32) continue;
    std::uint64_t bytes = 0;
    for (const fs::directory_entry& file : fs::directory_iterator(folder.path(), ignored)) {
      std::error_code gone;
      const std::uint64_t size = file.file_size(gone);
      if (!gone) bytes += size;
    }
    found.emplace_back(folder.last_write_time(ignored), folder.path(), bytes);
  }
  std::ranges::sort(found);
  std::vector<std::pair<fs::path, std::uint64_t>> folders;
  for (auto& [time, path, bytes] : found) folders.emplace_back(std::move(path), bytes);
  return folders;
}

std::vector<DiskTier::Found> DiskTier::scan() {
  std::vector<Found> all;
  std::error_code error;
  std::uint64_t bytes = 0;
  for (const auto& [path, size] : other_models()) bytes += size;
  for (const fs::directory_entry& entry : fs::directory_iterator(options_.folder, error)) {
    std::error_code ignored;
    const std::uint64_t size = entry.file_size(ignored);
    if (!ignored) bytes += size;
    if (entry.path().extension() == ".page") {
      const std::scoped_lock lock(mutex_);
      pages_.insert(entry.path().stem().string());
    }
    if (entry.path().extension() != ".snap") continue;
    try {
      all.push_back(read_index(entry.path()));
    } catch (const Error& problem) {
      log::warning("prefix cache on disk: ignored: {}", problem.what());
    }
  }
  bytes_ = bytes;
  return all;
}

bool DiskTier::has_page(const Key128& key) const {
  const std::scoped_lock lock(mutex_);
  return pages_.contains(hex(key));
}

void DiskTier::write(std::vector<Symbol> symbols, std::vector<Key128> keys, std::function<HostState()> source, SnapshotKind kind,
                     std::uint64_t pinned_bytes) {
  {
    const std::scoped_lock lock(mutex_);
    writes_.push_back({std::move(symbols), std::move(keys), std::move(source), kind, pinned_bytes});
    std::uint64_t pinned = 0;
    for (const WriteJob& job : writes_) pinned += job.pinned_bytes;
    while (pinned > kMaxPinnedBytes && writes_.size() > kAlwaysQueued) {
      pinned -= writes_.front().pinned_bytes;
      writes_.pop_front();
    }
  }
  wake_.notify_all();
}

std::shared_ptr<DiskLoad> DiskTier::load(std::vector<Symbol> symbols, const DiskCopy& copy) {
  auto load = std::make_shared<DiskLoad>();
  load->symbols = std::move(symbols);
  {
    const std::scoped_lock lock(mutex_);
    loads_.push_back({load, copy.file});
  }
  wake_.notify_all();
  return load;
}

std::vector<DiskTier::Found> DiskTier::take_events() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(events_, {});
}

void DiskTier::run() {
  for (;;) {
    std::optional<LoadJob> load;
    std::optional<WriteJob> write;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopping_ || !loads_.empty() || !writes_.empty(); });
      if (!loads_.empty()) {  // somebody waits for these
        load = std::move(loads_.front());
        loads_.pop_front();
      } else if (!writes_.empty()) {
        write = std::move(writes_.front());
        writes_.pop_front();
      } else {
        return;
      }
    }
    if (load) load_now(*load);
    if (write && writable_) write_now(*write);
    write.reset();  // lets go of the snapshot before waiting
    if (options_.on_event) options_.on_event();
  }
}

void DiskTier::write_file(const fs::path& path, const Key128& prefix, std::span<const RecordRegion> regions) {
  bytes_ += write_record(path, options_.model, prefix, regions);
}

void DiskTier::write_now(const WriteJob& job) {
  try {
    const std::vector<Key128>& keys = job.keys;
    // Room is made first, for all that may come, so that the folder never exceeds its budget.
    const auto new_pages = static_cast<std::uint64_t>(std::ranges::count_if(keys, [&](const Key128& key) { return !has_page(key); }));
    const std::uint64_t most = job.pinned_bytes + options_.max_logits * sizeof(float) + bytes_of(job.symbols).size() +
                               (new_pages + 1) * (options_.shape.page_bytes() + kRecordOverhead);
    if (bytes_ + most > options_.budget_bytes) trim(most, keys);
    if (bytes_ + most > options_.budget_bytes) return;
    const HostState state = job.source();
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (state.pages[i].empty()) continue;
      const RecordRegion region{kPage, state.pages[i]};
      write_file(page_path(keys[i]), keys[i], {&region, 1});
      const std::scoped_lock lock(mutex_);
      pages_.insert(hex(keys[i]));
    }
    const Key128 key = chain_key(options_.model, bytes_of(job.symbols));
    const Meta meta{static_cast<std::uint64_t>(state.position), static_cast<std::uint32_t>(job.kind), !state.logits.empty()};
    std::vector<RecordRegion> regions = {{kMeta, std::as_bytes(std::span(&meta, 1))},
                                         {kSymbols, bytes_of(job.symbols)},
                                         {kConv, state.conv},
                                         {kRecurrent, state.recurrent},
                                         {kTail, state.tail}};
    if (!state.logits.empty()) regions.push_back({kLogits, state.logits});
    if (!state.histories.empty()) regions.push_back({kHistories, bytes_of(state.histories)});
    const std::string name = hex(key) + ".snap";
    write_file(options_.folder / name, key, regions);
    const std::scoped_lock lock(mutex_);
    events_.push_back({job.symbols, {name, !state.logits.empty()}, job.kind, false, {}});
  } catch (const std::exception& error) {  // full, read-only or vanished
    stop_writing(error.what());
  }
}

void DiskTier::load_now(const LoadJob& job) {
  try {
    job.load->state = read_state(job);
    std::error_code ignored;  // the time of last use, for trim
    fs::last_write_time(options_.folder / job.file, fs::file_time_type::clock::now(), ignored);
  } catch (const std::exception& error) {
    // A file that is gone was removed for space, here or by another process: a miss like any other.
    std::error_code ignored;
    if (fs::exists(options_.folder / job.file, ignored)) log::warning("prefix cache on disk: ignored: {}", error.what());
    fs::remove(options_.folder / job.file, ignored);
    const std::scoped_lock lock(mutex_);
    events_.push_back({job.load->symbols, {}, SnapshotKind::block, true, {}});
  }
  job.load->done = true;
}

HostState DiskTier::read_state(const LoadJob& job) {
  const ops::StateShape& shape = options_.shape;
  const RecordReader reader(options_.folder / job.file, options_.model);
  const auto position = static_cast<std::int64_t>(job.load->symbols.size());
  if (reader.prefix() != chain_key(options_.model, bytes_of(job.load->symbols))) {
    fail(ErrorKind::bad_file, "{}: another prefix than its name says", job.file);
  }
  HostState state;
  state.position = position;
  state.conv = reader.read(kConv, shape.conv_floats() * sizeof(float));
  state.recurrent = reader.read(kRecurrent, shape.recurrent_floats() * sizeof(float));
  state.tail = reader.read(kTail, tail_bytes(shape, position));
  if (reader.has(kLogits)) state.logits = reader.read(kLogits, options_.max_logits * sizeof(float));
  state.histories = read_histories(reader, job.load->symbols.size());
  for (const Key128& key : page_keys(job.load->symbols, state.histories)) {
    const fs::path path = page_path(key);
    try {
      const RecordReader page(path, options_.model);
      if (page.prefix() != key) fail(ErrorKind::bad_file, "{}: another prefix than its name says", path.string());
      state.pages.push_back(page.read(kPage, shape.page_bytes()));
    } catch (const Error&) {
      std::error_code ignored;
      fs::remove(path, ignored);
      const std::scoped_lock lock(mutex_);
      pages_.erase(hex(key));
      throw;
    }
  }
  return state;
}

/// Removes folders of models not run lately, then the snapshots used longest ago, and pages that neither a snapshot nor `keep`
/// needs, until a tenth of the budget is free, or `room` if that is more.
void DiskTier::trim(std::uint64_t room, std::span<const Key128> keep) {
  struct File {
    fs::file_time_type used;
    fs::path path;
    std::uint64_t bytes;
    std::vector<std::string> pages;
    std::vector<Symbol> symbols;
  };
  std::vector<File> snapshots;
  std::unordered_map<std::string, std::uint64_t> page_bytes;
  std::unordered_map<std::string, int> references;
  for (const Key128& key : keep) ++references[hex(key)];
  std::uint64_t total = 0;
  std::error_code error;
  const auto recent = fs::file_time_type::clock::now() - std::chrono::minutes(1);
  for (const fs::directory_entry& entry : fs::directory_iterator(options_.folder, error)) {
    std::error_code ignored;
    const std::uint64_t bytes = entry.file_size(ignored);
    if (ignored) continue;  // another process removed it
    total += bytes;
    if (entry.path().extension() == ".page") {
      page_bytes[entry.path().stem().string()] = bytes;
      // Another process may be about to write the snapshot that needs a new page of its own.
      const std::scoped_lock lock(mutex_);
      const std::string key = entry.path().stem().string();
      if (!pages_.contains(key) && entry.last_write_time(ignored) > recent) ++references[key];
      continue;
    }
    if (entry.path().extension() != ".snap") continue;
    try {
      Found found = read_index(entry.path());
      File file{entry.last_write_time(ignored), entry.path(), bytes, {}, {}};
      for (const Key128& key : page_keys(found.symbols, found.histories)) {
        file.pages.push_back(hex(key));
        ++references[file.pages.back()];
      }
      file.symbols = std::move(found.symbols);
      snapshots.push_back(std::move(file));
    } catch (const Error&) {
      fs::remove(entry.path(), ignored);
      total -= bytes;
    }
  }
  const auto remove_page = [&](const std::string& key) {
    const auto page = page_bytes.find(key);
    if (page == page_bytes.end()) return;
    fs::remove(options_.folder / (key + ".page"), error);
    total -= page->second;
    const std::scoped_lock lock(mutex_);
    pages_.erase(key);
  };
  for (const auto& [key, bytes] : page_bytes) {
    if (!references.contains(key)) remove_page(key);
  }
  std::ranges::sort(snapshots, {}, &File::used);
  const std::uint64_t target = options_.budget_bytes - std::min(options_.budget_bytes, std::max(options_.budget_bytes / 10, room));
  // Models that nobody has run for a while go first, whole.
  const auto others = other_models();
  for (const auto& [path, bytes] : others) total += bytes;
  for (const auto& [path, bytes] : others) {
    if (total <= target || fs::last_write_time(path, error) > fs::file_time_type::clock::now() - kOtherModelRest) break;
    fs::remove_all(path, error);
    total -= bytes;
  }
  for (File& file : snapshots) {
    if (total <= target) break;
    fs::remove(file.path, error);
    total -= file.bytes;
    for (const std::string& key : file.pages) {
      if (--references[key] == 0) remove_page(key);
    }
    const std::scoped_lock lock(mutex_);
    events_.push_back({std::move(file.symbols), {}, SnapshotKind::block, true, {}});
  }
  bytes_ = total;
}

}  // namespace heirloom::engine
