// Surfaces on Apple's systems: an IOSurface with one row of bytes. The engine takes any tensor in it.
#ifdef __APPLE__
#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/limits.h"
#include "device/iosurface.h"
#include "device/surface.h"

namespace hexane::device {
namespace {

IOSurfaceRef ref(void* handle) { return static_cast<IOSurfaceRef>(handle); }
uint32_t options(bool read_only) { return read_only ? kIOSurfaceLockReadOnly : 0; }

}  // namespace

Surface::Surface(uint64_t bytes) : bytes_(bytes) {
  if (bytes > kMaxBytes) fail("surface", "got ", bytes, " bytes, need at most ", kMaxBytes);
  handle_ = make_iosurface(std::max<uint64_t>(bytes, 1));
  if (!handle_) fail("surface", "cannot get an IOSurface of ", bytes, " bytes");
  data_ = static_cast<std::byte*>(IOSurfaceGetBaseAddress(ref(handle_)));
  std::memset(data_, 0, bytes);
}

Surface::~Surface() { CFRelease(ref(handle_)); }

void* Surface::handle() const { return handle_; }

void Surface::lock(bool read_only) const {
  if (const auto code = IOSurfaceLock(ref(handle_), options(read_only), nullptr))
    fail("surface", "cannot lock it: IOSurfaceLock gave ", code);
}

void Surface::unlock(bool read_only) const { IOSurfaceUnlock(ref(handle_), options(read_only), nullptr); }

}  // namespace hexane::device
#endif
