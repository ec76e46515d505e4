#include "core/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace hexane {
namespace {

[[noreturn]] void fail_errno(const std::string& path, const char* what, int error = errno) {
  fail("file", path, ": cannot ", what, ": ", std::strerror(error));
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

// The file under construction: removed unless renamed.
struct Temporary {
  std::string path;
  ~Temporary() {
    if (!path.empty()) ::unlink(path.c_str());
  }
};

// The permissions a new file would have, or those of the file that is replaced.
mode_t mode_for(const std::string& path) {
  struct stat old {};
  if (::stat(path.c_str(), &old) == 0) return old.st_mode & 07777;
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

void write_all(int fd, Bytes bytes, const std::string& path) {
  constexpr size_t kMost = size_t{1} << 30;  // one write() takes at most 2 GiB, less on some systems
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), std::min(bytes.size(), kMost));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_errno(path, "write");
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) fail_errno(path, "open");
  struct stat status {};
  if (::fstat(file.fd, &status) != 0) fail_errno(path, "stat");
  if (!S_ISREG(status.st_mode)) fail("file", path, ": got something else, need a regular file");
  if (status.st_size == 0) return;
  const auto size = static_cast<size_t>(status.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) fail_errno(path, "map");
  bytes_ = {static_cast<const std::byte*>(data), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void save_file(const std::string& path, std::span<const Bytes> pieces) {
  std::string name = path + ".XXXXXX";
  const Descriptor file{::mkstemp(name.data())};
  if (file.fd < 0) fail_errno(path, "create a file beside it");
  Temporary temporary{name};
  for (const Bytes piece : pieces) write_all(file.fd, piece, path);
  if (::fchmod(file.fd, mode_for(path)) != 0) fail_errno(path, "set permissions");
  if (::fsync(file.fd) != 0) fail_errno(path, "sync");
  if (::rename(name.c_str(), path.c_str()) != 0) fail_errno(path, "rename the new file to it");
  temporary.path.clear();
}

}  // namespace hexane
