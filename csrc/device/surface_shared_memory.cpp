// Surfaces on systems without IOSurface: memory of a file descriptor, which another process could map too.
#ifndef __APPLE__
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/limits.h"
#include "device/surface.h"

namespace hexane::device {

Surface::Surface(uint64_t bytes) : bytes_(bytes) {
  if (bytes > kMaxBytes) fail("surface", "got ", bytes, " bytes, need at most ", kMaxBytes);
  const uint64_t mapped = std::max<uint64_t>(bytes, 1);
  const int file = ::memfd_create("hexane surface", MFD_CLOEXEC);
  if (file < 0) fail("surface", "cannot make shared memory: ", std::strerror(errno));
  void* const data = ::ftruncate(file, static_cast<off_t>(mapped)) == 0
                         ? ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                         : MAP_FAILED;
  if (data == MAP_FAILED) {
    const int error = errno;
    ::close(file);
    fail("surface", "cannot get ", bytes, " bytes of shared memory: ", std::strerror(error));
  }
  data_ = static_cast<std::byte*>(data);
  memory_ = {data, bytes, file, 0};
}

Surface::~Surface() {
  ::munmap(data_, std::max<uint64_t>(bytes_, 1));
  ::close(memory_.descriptor);
}

void* Surface::handle() const { return &memory_; }

void Surface::lock(bool) const { std::atomic_ref(memory_.locks).fetch_add(1, std::memory_order_acquire); }

void Surface::unlock(bool) const { std::atomic_ref(memory_.locks).fetch_sub(1, std::memory_order_release); }

}  // namespace hexane::device
#endif
