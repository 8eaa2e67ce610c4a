#include "format/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/check.h"

namespace heirloom {
namespace {

constexpr std::size_t kBufferBytes = 1 << 20;

}  // namespace

OutputFile::OutputFile(const std::filesystem::path& path)
    : path_(path), partial_(path.string() + ".partial-" + std::to_string(::getpid())) {
  if (std::filesystem::is_directory(path)) {
    fail(ErrorKind::usage, "{}: is a folder, expected the name of a file to write", path.string());
  }
  fd_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail(ErrorKind::usage, "{}: cannot create: {}", path.string(), std::strerror(errno));
  buffer_.reserve(kBufferBytes);
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(partial_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  HEIRLOOM_CHECK(fd_ >= 0);
  bytes_written_ += bytes.size();
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() >= kBufferBytes) {
    write_all(bytes);
  } else {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
}

void OutputFile::flush() {
  write_all(buffer_);
  buffer_.clear();
}

void OutputFile::write_all(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ::ssize_t count = ::write(fd_, bytes.data(), bytes.size());
    if (count < 0) {
      if (errno == EINTR) continue;
      fail_with_errno("write");
    }
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void OutputFile::commit() {
  HEIRLOOM_CHECK(fd_ >= 0);
  flush();
  // The data must be on the disk before the name is: otherwise a power cut could leave an empty file under
  // it.
  if (::fsync(fd_) != 0 && errno != EINVAL && errno != EROFS) fail_with_errno("flush");
  if (::rename(partial_.c_str(), path_.c_str()) != 0) fail_with_errno("rename");
  ::close(fd_);
  fd_ = -1;
}

void OutputFile::fail_with_errno(const char* what) const {
  const int error = errno;
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  fail(full ? ErrorKind::does_not_fit : ErrorKind::bad_file, "{}: cannot {} after {} bytes: {}{}",
       path_.string(), what, bytes_written_, std::strerror(error),
       full ? "; free some space or choose another folder" : "");
}

}  // namespace heirloom
