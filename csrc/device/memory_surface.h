/* The object of a surface's native handle on systems without IOSurface: a mapping of shared memory. C99 and C++.
 */
#pragma once

#include <stdint.h>

typedef struct hexane_memory_surface {
  void* base;
  uint64_t bytes;
  int32_t descriptor; /* Descriptor of the shared memory. */
  int32_t locks;      /* Locks held now, changed with atomic operations. A device runs nothing on a locked surface. */
} hexane_memory_surface;
