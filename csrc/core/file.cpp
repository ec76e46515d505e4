#include "core/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>  // renameat2, renamex_np
#include <cstring>
#include <filesystem>
#include <vector>

namespace hexane {
namespace {

constexpr size_t kMostAtOnce = size_t{1} << 30;  // One read() or write() takes at most 2 GiB, less on some systems.
constexpr size_t kMostPieces = 1000;             // One writev() takes at most 1024 pieces.
constexpr size_t kCompared = size_t{1} << 18;    // Bytes of a file compared at once.
constexpr int kMostLinks = 40;

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

void check_path(const std::string& path) {
  if (path.find('\0') != std::string::npos)
    fail("file", path.c_str(), ": got a path with a zero byte, need one without");
}

void check_regular(const std::string& path, mode_t mode) {
  if (S_ISREG(mode)) return;
  const char* kind = S_ISDIR(mode) ? "a folder" : S_ISFIFO(mode) ? "a pipe" : S_ISSOCK(mode) ? "a socket" : "a device";
  fail("file", path, ": got ", kind, ", need a regular file");
}

// Returns the file that a write to the path reaches: the end of a chain of links. The file need not exist yet.
std::filesystem::path followed(std::filesystem::path path) {
  for (int links = 0; links < kMostLinks; ++links) {
    std::error_code error;
    const auto target = std::filesystem::read_symlink(path, error);
    if (error) return path;
    path = path.parent_path() / target;
  }
  fail("file", path.string(), ": got more than ", kMostLinks, " links one behind the other, need less");
}

bool is_at(int fd, const std::string& name) {
  struct stat opened {
  }, named{};
  return ::fstat(fd, &opened) == 0 && ::lstat(name.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
         opened.st_dev == named.st_dev;
}

// Waits for the save that writes the file of this name, and removes the file if that save has been killed.
void clear(const std::string& name) {
  const Descriptor file{::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
  if (file.fd < 0 && errno == ENOENT) return;
  if (file.fd < 0) fail_errno(name, "open what is left of another save");
  while (::flock(file.fd, LOCK_EX) != 0)
    if (errno != EINTR) fail_errno(name, "lock what is left of another save");
  if (is_at(file.fd, name) && ::unlink(name.c_str()) != 0) fail_errno(name, "remove what is left of another save");
}

// Returns a new file. The new file is locked, so that other saves recognise it as being written.
int create(const std::string& path, const std::string& name, mode_t mode) {
  for (;;) {
    Descriptor file{::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode)};
    if (file.fd < 0 && errno == ENOENT) {
      const std::filesystem::path folder = std::filesystem::path(name).parent_path();
      std::error_code error;
      if (!std::filesystem::is_directory(folder, error))
        fail("file", path, ": got no folder ", folder.string(), ", need an existing one");
      errno = ENOENT;
    }
    if (file.fd < 0 && errno != EEXIST) fail_errno(path, "create a file beside it");
    if (file.fd < 0) {
      clear(name);
      continue;
    }
    while (::flock(file.fd, LOCK_EX) != 0 && errno == EINTR) {  // some file systems have no locks
    }
    if (is_at(file.fd, name)) return std::exchange(file.fd, -1);  // else another save has moved the file
  }
}

void write_all(int fd, std::span<const Bytes> pieces, const std::string& path) {
  std::vector<iovec> left;
  for (Bytes piece : pieces)
    for (size_t size = 0; !piece.empty(); piece = piece.subspan(size)) {
      size = std::min(piece.size(), kMostAtOnce);
      left.push_back({const_cast<std::byte*>(piece.data()), size});
    }
  for (size_t first = 0; first < left.size();) {
    size_t count = 0, bytes = 0;
    const size_t most = std::min(left.size() - first, kMostPieces);
    while (count < most && bytes + left[first + count].iov_len <= kMostAtOnce) bytes += left[first + count++].iov_len;
    const ssize_t written = ::writev(fd, &left[first], static_cast<int>(count));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_errno(path, "write");
    for (auto done = static_cast<size_t>(written); done > 0;) {
      iovec& piece = left[first];
      const size_t part = std::min(done, piece.iov_len);
      piece.iov_base = static_cast<std::byte*>(piece.iov_base) + part;
      piece.iov_len -= part;
      done -= part;
      if (piece.iov_len == 0) ++first;
    }
  }
}

void read_all(int fd, std::span<std::byte> to, const std::string& path) {
  while (!to.empty()) {
    const ssize_t got = ::read(fd, to.data(), std::min(to.size(), kMostAtOnce));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(path, "read");
    if (got == 0) fail("file", path, ": got ", to.size(), " bytes less than when it was opened, need all of it");
    to = to.subspan(static_cast<size_t>(got));
  }
}

// A file with holes may claim any size.
void check_size(const std::string& path, uint64_t bytes) {
  const auto most = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  if (bytes > most) fail("file", path, ": got ", bytes, " bytes, need at most this machine's ", most);
}

}  // namespace

Memory read_file(const std::string& path, size_t head, const std::function<void(Bytes)>& check) {
  check_path(path);
  // Opening a pipe must not wait for its writer.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) fail_errno(path, "open");
  struct stat status {};
  if (::fstat(file.fd, &status) != 0) fail_errno(path, "stat");
  check_regular(path, status.st_mode);
  const auto size = static_cast<uint64_t>(status.st_size);
  head = std::min<uint64_t>(head, size);
  Memory first(head, path);
  read_all(file.fd, {first.data(), head}, path);
  check({first.data(), head});
  check_size(path, size);
  Memory bytes(size, path);
  if (head) std::memcpy(bytes.data(), first.data(), head);
  read_all(file.fd, {bytes.data() + head, size - head}, path);
  return bytes;
}

void save_file(const std::string& path, std::span<const Bytes> pieces, bool sync) {
  check_path(path);
  struct stat old {};
  const bool replaces = ::stat(path.c_str(), &old) == 0;
  if (replaces) check_regular(path, old.st_mode);
  const std::string target = followed(path).string(), name = target + ".part";
  const Descriptor file{create(path, name, replaces ? old.st_mode & 0777 : 0666)};
  Temporary temporary{name};
  if (replaces && ::fchmod(file.fd, old.st_mode & 07777) != 0) fail_errno(path, "set permissions");
  write_all(file.fd, pieces, path);
  // A network file system reports failed writes when a descriptor is closed. A duplicate is closed, so that the first
  // descriptor keeps the lock.
  if ((sync ? ::fsync(file.fd) : ::close(::dup(file.fd))) != 0) fail_errno(path, sync ? "sync" : "write");
  if (::rename(name.c_str(), target.c_str()) != 0) fail_errno(path, "rename the new file to it");
  temporary.path.clear();
}

bool file_has(const std::string& path, std::span<const Bytes> pieces) {
  check_path(path);
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  struct stat status {};
  if (file.fd < 0 || ::fstat(file.fd, &status) != 0 || !S_ISREG(status.st_mode)) return false;
  uint64_t bytes = 0;
  for (const Bytes piece : pieces) bytes += piece.size();
  if (static_cast<uint64_t>(status.st_size) != bytes) return false;
  std::vector<std::byte> there(std::min<uint64_t>(bytes, kCompared));
  for (Bytes piece : pieces)
    while (!piece.empty()) {
      const std::span<std::byte> some(there.data(), std::min(piece.size(), there.size()));
      read_all(file.fd, some, path);
      if (std::memcmp(some.data(), piece.data(), some.size()) != 0) return false;
      piece = piece.subspan(some.size());
    }
  return true;
}

bool exchange_folders(const std::string& one, const std::string& other) {
  check_path(one);
  check_path(other);
#ifdef __APPLE__
  return ::renamex_np(one.c_str(), other.c_str(), RENAME_SWAP) == 0;
#else
  return ::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0;
#endif
}

}  // namespace hexane
