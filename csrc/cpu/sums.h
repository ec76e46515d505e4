// Long sums, in blocks. One running total of k terms of one sign is wrong in the end by up to k roundings. Here the
// terms of a block are added first, and a full block joins the total. A term then takes part in as many roundings as a
// block has terms, and in one for each block.
#pragma once

#include <cstdint>

namespace hexane::cpu {

inline constexpr int64_t kShortSum = 512;  // terms; a shorter sum is one block

// The terms of a block in a sum of k. The number depends on k alone, so threads and tiles do not change the bits.
inline int64_t sum_block(int64_t k) {
  int64_t block = kShortSum;
  while (block < k / block) block *= 2;
  return block;
}

}  // namespace hexane::cpu
