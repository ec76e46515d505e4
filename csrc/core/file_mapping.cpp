#include "core/file_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <utility>

#include "core/error.h"
#include "core/fork_mutex.h"

namespace hexane {
namespace {

ForkMutex all_mutex;
std::map<const std::byte*, std::weak_ptr<FileMapping>> all;  // by address

std::timespec modification_time(const struct stat& status) {
#ifdef __APPLE__
  return status.st_mtimespec;
#else
  return status.st_mtim;
#endif
}

}  // namespace

std::shared_ptr<FileMapping> FileMapping::map(int descriptor, std::string where) {
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0 || status.st_size <= 0) return nullptr;
  const std::shared_ptr<FileMapping> result(new FileMapping());
  result->descriptor_ = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (result->descriptor_ < 0) return nullptr;
  const auto size = static_cast<uint64_t>(status.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (data == MAP_FAILED) return nullptr;
  result->where_ = std::move(where);
  result->data_ = static_cast<const std::byte*>(data);
  result->size_ = size;
  result->modified_ = modification_time(status);
  const std::lock_guard lock(all_mutex);
  all[result->data_] = result;
  return result;
}

std::shared_ptr<FileMapping> FileMapping::at(const void* address) {
  std::shared_ptr<FileMapping> result;  // destroyed after the lock
  const std::lock_guard lock(all_mutex);
  auto after = all.upper_bound(static_cast<const std::byte*>(address));
  if (after == all.begin()) return nullptr;
  result = std::prev(after)->second.lock();
  return result && address < result->data_ + result->size_ ? result : nullptr;
}

FileMapping::~FileMapping() {
  if (data_) {
    {
      const std::lock_guard lock(all_mutex);
      all.erase(data_);  // before another file may be mapped here
    }
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
  if (descriptor_ >= 0) ::close(descriptor_);
}

void FileMapping::read(uint64_t begin, std::span<std::byte> to) const {
  for (size_t done = 0; done < to.size();) {
    const ssize_t got = ::pread(descriptor_, to.data() + done, to.size() - done, static_cast<off_t>(begin + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      throw Error(where_ + ": got a file that became shorter, need its " + std::to_string(size_) + " bytes");
    done += static_cast<size_t>(got);
  }
}

void FileMapping::release(Bytes bytes) const {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(bytes.data()) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(bytes.data() + bytes.size());
  // Nobody writes to the mapping, so no change is lost.
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void FileMapping::check_unchanged() const {
  struct stat status = {};
  const bool is_known = ::fstat(descriptor_, &status) == 0;
  const std::timespec now = modification_time(status);
  if (!is_known || static_cast<uint64_t>(status.st_size) != size_ || now.tv_sec != modified_.tv_sec ||
      now.tv_nsec != modified_.tv_nsec)
    throw Error(where_ + ": the file has changed since it was opened, load the model again");
}

}  // namespace hexane
