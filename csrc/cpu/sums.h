// Long sums, in blocks. A single running total of k terms accumulates up to k rounding errors. Sums in blocks add the
// terms of a block first and then add the block to the total. So a term passes through at most one rounding for each
// term of its block, plus one for each block.
#pragma once

#include <cstdint>

namespace hexane::cpu {

inline constexpr int64_t kShortSum = 512;  // terms; a shorter sum is one block

// Returns the number of terms of a block in a sum of k terms. The length of a block depends on k alone, so threads and
// tiles do not change the bits.
inline int64_t sum_block(int64_t k) {
  int64_t block = kShortSum;
  while (block < k / block) block *= 2;
  return block;
}

}  // namespace hexane::cpu
