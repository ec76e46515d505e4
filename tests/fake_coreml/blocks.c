// What clang's blocks need of a system's library, for blocks that capture plain data alone. Macs have their own.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

__attribute__((visibility("hidden"))) void* _NSConcreteStackBlock[32];
__attribute__((visibility("hidden"))) void* _NSConcreteGlobalBlock[32];

struct block {
  void* isa;
  int32_t flags;
  int32_t reserved;
  void (*invoke)(void);
  struct {
    uintptr_t reserved, bytes;
  } * descriptor;
};

enum { kHelpers = 1 << 25, kGlobal = 1 << 28 };

__attribute__((visibility("hidden"))) void* _Block_copy(const void* given) {
  const struct block* block = given;
  if (block->flags & kGlobal) return (void*)given;
  if (block->flags & kHelpers) abort();  // it captures an object: whoever wrote it leaks or frees too early
  void* copy = malloc(block->descriptor->bytes);
  return copy ? memcpy(copy, given, block->descriptor->bytes) : NULL;
}

__attribute__((visibility("hidden"))) void _Block_release(const void* given) {
  const struct block* block = given;
  if (!(block->flags & kGlobal)) free((void*)given);
}
