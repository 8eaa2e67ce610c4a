#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

namespace heirloom {
namespace {

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) fail(ErrorKind::bad_file, "{}: cannot open: {}", path.string(), std::strerror(errno));
  struct stat status {};
  if (::fstat(file.fd, &status) != 0) {
    fail(ErrorKind::bad_file, "{}: cannot read its size: {}", path.string(), std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) fail(ErrorKind::bad_file, "{}: not a regular file", path.string());
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (address == MAP_FAILED) fail(ErrorKind::bad_file, "{}: cannot map: {}", path.string(), std::strerror(errno));
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::release(std::uint64_t offset, std::uint64_t length) const noexcept {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t first = (offset + page - 1) / page * page;
  const std::uint64_t last = (offset + length) / page * page;
  if (last > first) ::madvise(const_cast<std::byte*>(data_) + first, last - first, MADV_DONTNEED);
}

std::string read_text_file(const std::filesystem::path& path, std::uint64_t limit_bytes) {
  std::error_code error;
  const std::uint64_t size = std::filesystem::file_size(path, error);
  if (error) fail(ErrorKind::bad_file, "{}: cannot read: {}", path.string(), error.message());
  if (size > limit_bytes) {
    fail(ErrorKind::bad_file, "{}: {} bytes, more than the {} allowed here", path.string(), size, limit_bytes);
  }
  std::ifstream stream(path, std::ios::binary);
  std::string text(size, '\0');
  if (!stream.read(text.data(), static_cast<std::streamsize>(size))) {
    fail(ErrorKind::bad_file, "{}: cannot read", path.string());
  }
  return text;
}

}  // namespace heirloom
