// Integers with a scale for each block of a weight.
//
//    a block [0.5, -1.0, 0.24] of 4 bits:  scale 1/7, integers 4 -7 2
#pragma once

#include <cstdint>
#include <span>

namespace hexane::pack {

// weights: blocks one after the other, each of weights.size() / scales.size() numbers. bits: 4, integers from -8 to 7,
// or 8, from -127 to 127; integer = weight / scale, to nearest even, within these.
//
// A scale is a number of fp16. The first try is largest magnitude / 7 (or 127) and parts of it; then half-quadratic
// steps follow, which fit the scale to the weights less a part of the largest errors. Of all tried the scale with the
// least sum of squared errors is taken. A block of zeros has the scale 1. Integer times scale is finite in fp16.
// Throws for a weight that is not finite or beyond fp16.
void quantise_blocks(std::span<const float> weights, int bits, int threads, std::span<int8_t> integers,
                     std::span<float> scales);

}  // namespace hexane::pack
