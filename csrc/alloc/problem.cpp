// Rejects invalid problems before sizes are added.
#include "alloc/problem.h"

#include <algorithm>
#include <limits>

#include "core/error.h"

namespace hexane::alloc {

namespace {

bool is_power_of_two(int64_t x) { return x > 0 && (x & (x - 1)) == 0; }

void validate_gaps(size_t id, const Buffer& buffer) {
  int64_t last = buffer.lower;
  for (const Gap& gap : buffer.gaps) {
    if (gap.lower <= last) fail("alloc", "buffer ", id, " gap: got lower ", gap.lower, ", need more than ", last);
    if (gap.upper <= gap.lower || gap.upper >= buffer.upper) {
      fail("alloc", "buffer ", id, " gap: got upper ", gap.upper, ", need more than ", gap.lower, " and less than ",
           buffer.upper);
    }
    last = gap.upper;
  }
}

}  // namespace

bool is_plain(const Problem& problem) {
  return std::all_of(problem.buffers.begin(), problem.buffers.end(), [&](const Buffer& buffer) {
    return buffer.gaps.empty() && !buffer.at && buffer.alignment <= problem.alignment;
  });
}

void validate(const Problem& problem) {
  const int64_t alignment = problem.alignment;
  if (!is_power_of_two(alignment)) {
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
    validate_gaps(id, buffer);
    const int64_t own = std::max(buffer.alignment, alignment);
    if (buffer.alignment != 0 && !is_power_of_two(buffer.alignment)) {
      fail("alloc", "buffer ", id, " alignment: got ", buffer.alignment, ", need a power of two");
    }
    // A buffer with an alignment of its own may need padding below it. A buffer lies at most as high as the total of
    // all other buffers with their padding.
    const int64_t waste = own > alignment ? own : 0;
    if (waste > room) fail("alloc", "buffer ", id, " alignment: got ", own, ", need at most ", room);
    room -= waste;
    if (buffer.at) {
      if (*buffer.at < 0 || *buffer.at % own != 0)
        fail("alloc", "buffer ", id, " place: got ", *buffer.at, ", need a multiple of ", own);
      if (*buffer.at > room) fail("alloc", "buffer ", id, " place: got ", *buffer.at, ", need at most ", room);
      room -= *buffer.at;
    }
    // The rounded size is at most the largest multiple of the alignment within `room`.
    if (buffer.size > (room & -alignment)) {
      fail("alloc", "buffer ", id, " size: got ", buffer.size, ", need at most ", room & -alignment,
           " for the sum of all sizes to fit 63 bits");
    }
    room -= round_up(buffer.size, alignment);
  }
}

}  // namespace hexane::alloc
