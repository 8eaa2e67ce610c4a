#include "engine/disk_record.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/check.h"

namespace heirloom::engine {
namespace {

// Little-endian, as every machine this program runs on.
constexpr char kMagic[8] = {'H', 'L', 'S', 'T', 'A', 'T', 'E', '\n'};
constexpr std::uint32_t kVersion = 1;
constexpr std::uint32_t kMaxRegions = 16;
constexpr int kZstdLevel = 1;  // states are nearly random floats: higher levels gain nothing
constexpr std::size_t kSampleBytes = 128 << 10;
enum Codec : std::uint32_t { kRaw = 0, kZstd = 1 };

struct FileHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t num_regions;
  std::uint8_t model[16];
  std::uint8_t prefix[16];
  std::uint64_t checksum;  // XXH3-64 of this header with checksum 0, then of the table
};
static_assert(sizeof(FileHeader) == 56);

struct FileRegion {
  std::uint32_t id;
  std::uint32_t codec;
  std::uint64_t raw_bytes;
  std::uint64_t stored_bytes;
  std::uint64_t checksum;  // XXH3-64 of the stored bytes
};
static_assert(sizeof(FileRegion) == 32);

std::uint64_t header_checksum(FileHeader header, std::span<const FileRegion> table) {
  header.checksum = 0;
  const std::uint64_t head = XXH3_64bits(&header, sizeof(header));
  return XXH3_64bits_withSeed(table.data(), table.size_bytes(), head);
}

/// True if `packed` came out smaller than nine tenths of `raw`.
bool compress(std::span<const std::byte> raw, std::vector<std::byte>& packed) {
  packed.resize(ZSTD_compressBound(raw.size()));
  const std::size_t size = ZSTD_compress(packed.data(), packed.size(), raw.data(), raw.size(), kZstdLevel);
  if (ZSTD_isError(size) || size >= raw.size() / 10 * 9) return false;
  packed.resize(size);
  return true;
}

[[noreturn]] void fail_system(const std::filesystem::path& path, const char* what) {
  throw std::system_error(errno, std::generic_category(), path.string() + ": " + what);
}

/// A file that disappears unless it was renamed to its final name.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::filesystem::path& final_path) : final_path_(final_path) {
    static std::atomic<std::uint64_t> counter{0};
    path_ = final_path.parent_path() / fmt::format("tmp-{}-{}", ::getpid(), counter++);
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd_ < 0) fail_system(path_, "cannot create");
  }
  ~TemporaryFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  void write(const void* data, std::size_t bytes) {
    const auto* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t written = ::write(fd_, from, bytes);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail_system(path_, "cannot write");
      from += written;
      bytes -= static_cast<std::size_t>(written);
    }
  }
  void commit() {
    const int fd = std::exchange(fd_, -1);
    if (::close(fd) != 0) fail_system(path_, "cannot write");
    if (::rename(path_.c_str(), final_path_.c_str()) != 0) fail_system(final_path_, "cannot rename");
    path_.clear();
  }

 private:
  std::filesystem::path final_path_, path_;
  int fd_ = -1;
};

}  // namespace

Key128 chain_key(const Key128& before, std::span<const std::byte> bytes) {
  XXH3_state_t* state = XXH3_createState();
  XXH3_128bits_reset(state);
  XXH3_128bits_update(state, before.data(), before.size());
  XXH3_128bits_update(state, bytes.data(), bytes.size());
  const XXH128_hash_t hash = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  Key128 key;
  std::memcpy(key.data(), &hash, sizeof(hash));
  return key;
}

std::string hex(const Key128& key) {
  std::string text;
  for (const std::uint8_t byte : key) text += fmt::format("{:02x}", byte);
  return text;
}

std::uint64_t write_record(const std::filesystem::path& path, const Key128& model, const Key128& prefix,
                           std::span<const RecordRegion> regions) {
  HEIRLOOM_CHECK(regions.size() <= kMaxRegions);
  std::vector<FileRegion> table;
  std::vector<std::vector<std::byte>> compressed(regions.size());
  for (std::size_t i = 0; i < regions.size(); ++i) {
    const std::span<const std::byte> raw = regions[i].bytes;
    std::vector<std::byte>& packed = compressed[i];
    // Most float states do not shrink: a sample saves the time to find that out on all of it.
    const std::size_t sample = std::min(raw.size(), kSampleBytes);
    const bool smaller = compress(raw.subspan((raw.size() - sample) / 2, sample), packed) &&
                         (sample == raw.size() || compress(raw, packed));
    if (!smaller) packed.clear();
    const std::span<const std::byte> stored = smaller ? std::span<const std::byte>(packed) : raw;
    table.push_back({regions[i].id, smaller ? kZstd : kRaw, raw.size(), stored.size(),
                     XXH3_64bits(stored.data(), stored.size())});
  }
  FileHeader header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kVersion;
  header.num_regions = static_cast<std::uint32_t>(table.size());
  std::memcpy(header.model, model.data(), model.size());
  std::memcpy(header.prefix, prefix.data(), prefix.size());
  header.checksum = header_checksum(header, table);
  TemporaryFile file(path);
  file.write(&header, sizeof(header));
  file.write(table.data(), table.size() * sizeof(FileRegion));
  std::uint64_t bytes = sizeof(header) + table.size() * sizeof(FileRegion);
  for (std::size_t i = 0; i < regions.size(); ++i) {
    const bool packed = table[i].codec == kZstd;
    file.write(packed ? compressed[i].data() : regions[i].bytes.data(), table[i].stored_bytes);
    bytes += table[i].stored_bytes;
  }
  file.commit();
  return bytes;
}

RecordReader::RecordReader(const std::filesystem::path& path, const Key128& model) : path_(path) {
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) fail(ErrorKind::bad_file, "{}: cannot open: {}", path.string(), std::strerror(errno));
  try {
    struct stat status {};
    if (::fstat(fd_, &status) != 0) fail(ErrorKind::bad_file, "{}: cannot read", path.string());
    file_bytes_ = static_cast<std::uint64_t>(status.st_size);
    FileHeader header;
    read_at(0, &header, sizeof(header));
    if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) fail(ErrorKind::bad_file, "{}: not a state file", path.string());
    if (header.version != kVersion) {
      fail(ErrorKind::bad_file, "{}: state format {}, this program has {}", path.string(), header.version, kVersion);
    }
    if (header.num_regions > kMaxRegions) fail(ErrorKind::bad_file, "{}: damaged header", path.string());
    std::vector<FileRegion> table(header.num_regions);
    read_at(sizeof(header), table.data(), table.size() * sizeof(FileRegion));
    if (header_checksum(header, table) != header.checksum) fail(ErrorKind::bad_file, "{}: damaged header", path.string());
    if (std::memcmp(header.model, model.data(), model.size()) != 0) {
      fail(ErrorKind::bad_file, "{}: state of another model or plan", path.string());
    }
    std::memcpy(prefix_.data(), header.prefix, prefix_.size());
    std::uint64_t offset = sizeof(header) + table.size() * sizeof(FileRegion);
    for (const FileRegion& region : table) {
      if (region.codec > kZstd || region.stored_bytes > file_bytes_ - offset) {
        fail(ErrorKind::bad_file, "{}: damaged or cut off", path.string());
      }
      regions_.push_back({region.id, region.codec, region.raw_bytes, region.stored_bytes, region.checksum, offset});
      offset += region.stored_bytes;
    }
    if (offset != file_bytes_) fail(ErrorKind::bad_file, "{}: damaged or cut off", path.string());
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

RecordReader::~RecordReader() { ::close(fd_); }

void RecordReader::read_at(std::uint64_t offset, void* to, std::uint64_t bytes) const {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd_, at, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) fail(ErrorKind::bad_file, "{}: damaged or cut off", path_.string());
    at += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::uint64_t>(got);
  }
}

const RecordReader::Region* RecordReader::find(std::uint32_t id) const {
  for (const Region& region : regions_) {
    if (region.id == id) return &region;
  }
  return nullptr;
}

bool RecordReader::has(std::uint32_t id) const { return find(id) != nullptr; }

std::uint64_t RecordReader::size_of(std::uint32_t id) const {
  const Region* region = find(id);
  return region != nullptr ? region->raw_bytes : 0;
}

std::vector<std::byte> RecordReader::read(std::uint32_t id, std::uint64_t expected_bytes) const {
  const Region* region = find(id);
  if (region == nullptr || region->raw_bytes != expected_bytes ||
      (region->codec == kRaw && region->stored_bytes != region->raw_bytes)) {
    fail(ErrorKind::bad_file, "{}: region {} is missing or has a wrong size", path_.string(), id);
  }
  std::vector<std::byte> stored(region->stored_bytes);
  read_at(region->offset, stored.data(), stored.size());
  if (XXH3_64bits(stored.data(), stored.size()) != region->checksum) {
    fail(ErrorKind::bad_file, "{}: region {} is damaged", path_.string(), id);
  }
  if (region->codec == kRaw) return stored;
  std::vector<std::byte> raw(region->raw_bytes);
  const std::size_t size = ZSTD_decompress(raw.data(), raw.size(), stored.data(), stored.size());
  if (ZSTD_isError(size) || size != raw.size()) fail(ErrorKind::bad_file, "{}: region {} is damaged", path_.string(), id);
  return raw;
}

}  // namespace heirloom::engine
