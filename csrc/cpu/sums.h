// Long sums, in blocks. One running total of k terms of one sign is wrong in the end by up to k roundings. Where blocks
// of terms are added up first, and join the total when they are full, no number takes part in more than a block's terms
// and the number of blocks.
#pragma once

#include <cstdint>

namespace hexane::cpu {

inline constexpr int64_t kShortSum = 512;  // so many terms are one block

// Terms of a block in a sum of k. It depends on k alone, so neither threads nor tiles show in the bits.
inline int64_t sum_block(int64_t k) {
  int64_t block = kShortSum;
  while (block < k / block) block *= 2;
  return block;
}

}  // namespace hexane::cpu
