// Refuses what no packing can be made of, before any number of it is added up.
#include "alloc/problem.h"

#include <limits>

#include "core/error.h"

namespace hexane::alloc {

void validate(const Problem& problem) {
  const int64_t alignment = problem.alignment;
  if (alignment <= 0 || (alignment & (alignment - 1)) != 0) {
    fail("alloc", "alignment: got ", alignment, ", need a power of two");
  }
  if (problem.capacity && *problem.capacity < 0) fail("alloc", "capacity: got ", *problem.capacity, ", need >= 0");

  constexpr size_t kMostBuffers = std::numeric_limits<int32_t>::max() / 2;
  if (problem.buffers.size() > kMostBuffers) {
    fail("alloc", "buffers: got ", problem.buffers.size(), ", need at most ", kMostBuffers);
  }

  int64_t room = std::numeric_limits<int64_t>::max();
  for (size_t id = 0; id < problem.buffers.size(); id++) {
    const Buffer& buffer = problem.buffers[id];
    if (buffer.lower < 0) fail("alloc", "buffer ", id, " lower: got ", buffer.lower, ", need >= 0");
    if (buffer.upper <= buffer.lower) {
      fail("alloc", "buffer ", id, " upper: got ", buffer.upper, ", need more than its lower ", buffer.lower);
    }
    if (buffer.size < 0) fail("alloc", "buffer ", id, " size: got ", buffer.size, ", need >= 0");
    // The largest multiple of the alignment within `room` is what the rounded size may be at most.
    if (buffer.size > (room & -alignment)) {
      fail("alloc", "buffer ", id, " size: got ", buffer.size, ", need at most ", room & -alignment,
           " for the sum of all sizes to fit 63 bits");
    }
    room -= round_up(buffer.size, alignment);
  }
}

}  // namespace hexane::alloc
