// The allocator's problem and solution: a place for each buffer in the smallest arena, where buffers with overlapping
// lifetimes share no byte (strip packing with the time axis fixed).
//
//   offset
//     9 |         +-----------+          height 9
//       |         |     d     |
//     6 |   +-----+-----+-----+
//       |   |     b     |     |          b [1, 3) lies on a [0, 2); c [2, 4) takes a's place when a is dead;
//     3 +---+-----+-----+  c  |          d [2, 4) lies on b and c. At step 2 b, c and d are live: 3 + 3 + 3 bytes,
//       |    a    |     c     |          so no packing can be lower: 9 is also the bound.
//     0 +---+-----+-----+-----+ time
//       0   1     2     3     4
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace hexane::alloc {

// Steps of a live buffer, lower <= step < upper, at which its contents are not needed: other buffers may use its bytes.
struct Gap {
  int64_t lower = 0;
  int64_t upper = 0;
  bool operator==(const Gap&) const = default;
};

// Live at the steps lower <= step < upper. A buffer of size 0 takes no space.
struct Buffer {
  int64_t lower = 0;
  int64_t upper = 0;
  int64_t size = 0;             // Size in bytes.
  int64_t alignment = 0;        // Alignment of the offset, a power of two; ignored if less than Problem::alignment.
  std::optional<int64_t> at{};  // Fixed offset.
  std::vector<Gap> gaps{};      // Gaps in the live range, in order, at least a step apart.
  bool operator==(const Buffer&) const = default;
};

struct Problem {
  std::vector<Buffer> buffers;
  int64_t alignment = 64;  // bytes, a power of two: offsets are multiples of the alignment, sizes are rounded up to it
  std::optional<int64_t>
      capacity;  // bytes; if set, any packing within the capacity is accepted, else the lowest packing is sought
};

struct Solution {
  std::vector<int64_t> offsets;  // One offset per buffer.
  int64_t height = 0;            // Bytes of the arena.
  int64_t bound = 0;             // Lower bound of the height; height == bound means that the packing is proven optimal.
};

// Returns the size that a buffer takes in the arena.
inline int64_t round_up(int64_t size, int64_t alignment) { return (size + alignment - 1) & -alignment; }

// True if no buffer has a gap, a fixed place or an alignment larger than the problem's.
bool is_plain(const Problem& problem);

// Throws Error unless live ranges are non-empty, begin at a step >= 0 and contain their gaps; sizes are not negative;
// alignments are powers of two; fixed places are multiples of them; and the sum of all sizes and places fits in int64.
void validate(const Problem& problem);

}  // namespace hexane::alloc
