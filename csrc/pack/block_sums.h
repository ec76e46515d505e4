// The inner loops of quantise_blocks, with the widest registers that the CPU has.
#pragma once

#include <cstddef>

namespace hexane::pack {

inline constexpr size_t kBlocks = 16;                   // blocks that are quantised together, one in each lane
inline constexpr size_t kPartialSums = 8;               // number i of a block counts in sum i % 8, on every CPU
inline constexpr float kRoundsToInteger = 12582912.0f;  // 1.5 * 2^23: adding and subtracting it rounds a small number

// How the weights of each block become integers: integer = weight / scale, clamped to low .. high, to nearest even.
struct Steps {
  float scale[kBlocks], low[kBlocks], high;
};

struct BlockSums {
  float error[kBlocks], products[kBlocks], squares[kBlocks];
};

// Sums squared errors, weights times integers, and squared integers of each block. weights: [size][kBlocks]; size: a
// multiple of kPartialSums. importance: [size], or null. The result does not depend on the CPU.
void sum_blocks(const float* weights, const float* importance, size_t size, const Steps& steps, BlockSums& out);

// Sums (w - e) times integers, and squared integers; quantise_blocks describes e and the penalty. `out.error` is not
// set.
void sum_without_errors(const float* weights, size_t size, const Steps& steps, float penalty, BlockSums& out);

}  // namespace hexane::pack
