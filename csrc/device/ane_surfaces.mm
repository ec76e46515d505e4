// Surfaces of the system, through IOSurface. The engine sees one as flat memory, whatever its width and format say.
#import "device/ane.h"

#ifdef __APPLE__
#include <IOSurface/IOSurfaceRef.h>
#endif

namespace hexane::ane {
#ifdef __APPLE__
namespace {

IOSurfaceRef surface_of(void* surface) { return static_cast<IOSurfaceRef>(surface); }

void* create(uint64_t bytes) {
  void* surface = nullptr;
  hexane_ane_error ignored;
  guarded(&ignored, "bind", [&] {
    NSDictionary* properties = @{
      (id)kIOSurfaceWidth : @(bytes),
      (id)kIOSurfaceHeight : @1,
      (id)kIOSurfaceBytesPerElement : @1,
      (id)kIOSurfaceBytesPerRow : @(bytes),
      (id)kIOSurfaceAllocSize : @(bytes),
      (id)kIOSurfacePixelFormat : @0
    };
    surface = IOSurfaceCreate((CFDictionaryRef)properties);
    return true;
  });
  return surface;
}

bool lock(void* surface, bool to_read) {
  return IOSurfaceLock(surface_of(surface), to_read ? kIOSurfaceLockReadOnly : 0, nullptr) == 0;
}

bool unlock(void* surface, bool to_read) {
  return IOSurfaceUnlock(surface_of(surface), to_read ? kIOSurfaceLockReadOnly : 0, nullptr) == 0;
}

}  // namespace

const hexane_ane_surfaces* system_surfaces() {
  static const hexane_ane_surfaces surfaces = {
      .create = create,
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
