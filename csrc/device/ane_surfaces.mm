// Surfaces of the system, through IOSurface.
#import "device/ane.h"

#include "device/iosurface.h"

namespace hexane::ane {
#ifdef __APPLE__
namespace {

IOSurfaceRef surface_of(void* surface) { return static_cast<IOSurfaceRef>(surface); }

bool lock(void* surface, bool to_read) {
  return IOSurfaceLock(surface_of(surface), to_read ? kIOSurfaceLockReadOnly : 0, nullptr) == 0;
}

bool unlock(void* surface, bool to_read) {
  return IOSurfaceUnlock(surface_of(surface), to_read ? kIOSurfaceLockReadOnly : 0, nullptr) == 0;
}

}  // namespace

const hexane_ane_surfaces* system_surfaces() {
  static const hexane_ane_surfaces surfaces = {
      .create = [](uint64_t bytes) -> void* { return device::make_iosurface(bytes); },
      .release = [](void* surface) { CFRelease(surface); },
      .base = [](void* surface) { return IOSurfaceGetBaseAddress(surface_of(surface)); },
      .bytes = [](void* surface) -> uint64_t { return IOSurfaceGetAllocSize(surface_of(surface)); },
      .lock = lock,
      .unlock = unlock,
  };
  return &surfaces;
}
#else
const hexane_ane_surfaces* system_surfaces() { return nullptr; }
#endif
}  // namespace hexane::ane
