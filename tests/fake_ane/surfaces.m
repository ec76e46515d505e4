// Surfaces of the stand-in: shared memory behind the handle that the project uses where there is no IOSurface.
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device/memory_surface.h"
#include "fake_ane.h"

static hexane_memory_surface* surface_of(void* surface) { return surface; }

static void* create(uint64_t bytes) {
  const int file = memfd_create("surface", MFD_CLOEXEC);
  void* base = file >= 0 && ftruncate(file, bytes) == 0 ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                                                        : MAP_FAILED;
  if (base == MAP_FAILED) {
    close(file);
    return NULL;
  }
  hexane_memory_surface* made = calloc(1, sizeof *made);
  *made = (hexane_memory_surface){.base = base, .bytes = bytes, .descriptor = file};
  return made;
}

static void release(void* surface) {
  munmap(surface_of(surface)->base, surface_of(surface)->bytes);
  close(surface_of(surface)->descriptor);
  free(surface);
}

static void* base(void* surface) { return surface_of(surface)->base; }
static uint64_t bytes(void* surface) { return surface_of(surface)->bytes; }

static bool lock(void* surface, bool to_read) {
  (void)to_read;
  __atomic_add_fetch(&surface_of(surface)->locks, 1, __ATOMIC_ACQUIRE);
  return true;
}

static bool unlock(void* surface, bool to_read) {
  (void)to_read;
  return __atomic_sub_fetch(&surface_of(surface)->locks, 1, __ATOMIC_RELEASE) >= 0;
}

const hexane_ane_surfaces* fake_ane_surfaces(void) {
  static const hexane_ane_surfaces surfaces = {create, release, base, bytes, lock, unlock};
  return &surfaces;
}
