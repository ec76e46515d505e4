// An IOSurface of one row of bytes. The engine takes any tensor in such a surface, and ignores its width and format.
// The code uses the C interface of CoreFoundation, so that C++ and Objective-C++ share it.
#pragma once

#ifdef __APPLE__
#include <CoreFoundation/CoreFoundation.h>
#include <IOSurface/IOSurfaceRef.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace hexane::device {

// Null if there is no memory. The caller releases the surface.
inline IOSurfaceRef make_iosurface(uint64_t bytes) {
  const std::array<CFStringRef, 6> keys = {kIOSurfaceWidth,       kIOSurfaceHeight,    kIOSurfaceBytesPerElement,
                                           kIOSurfaceBytesPerRow, kIOSurfaceAllocSize, kIOSurfacePixelFormat};
  const auto size = static_cast<int64_t>(bytes);
  const std::array<int64_t, 6> values = {size, 1, 1, size, size, 0};
  CFMutableDictionaryRef properties =
      CFDictionaryCreateMutable(nullptr, 0, &kCFTypeDictionaryKeyCallBacks, &kCFTypeDictionaryValueCallBacks);
  for (size_t i = 0; i < keys.size(); ++i) {
    CFNumberRef number = CFNumberCreate(nullptr, kCFNumberSInt64Type, &values[i]);
    CFDictionarySetValue(properties, keys[i], number);
    CFRelease(number);
  }
  const IOSurfaceRef made = IOSurfaceCreate(properties);
  CFRelease(properties);
  return made;
}

}  // namespace hexane::device
#endif
