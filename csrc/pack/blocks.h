// Integers with a scale for each block of a weight.
//
//    a block [0.5, -1.0, 0.24] of 4 bits:  scale 1/7, integers 4 -7 2
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace hexane::pack {

// How much a squared error counts in each input channel, for example the mean square of the layer's input in this
// channel. Blocks form `rows` runs of equal length. All blocks of a run have the same channels.size() / rows input
// channels. The numbers of a channel (the taps of a filter) are adjacent in a block:
//
//    2 output channels, 4 input channels, blocks of 2: rows = 2
//    weights  o0 c0 c1   o1 c0 c1   o0 c2 c3   o1 c2 c3
//    channels    m0 m1                 m2 m3
//
// With empty `channels` all errors count the same.
struct Importance {
  std::span<const double> channels;
  size_t rows = 1;
};

// weights: blocks one after the other, each of weights.size() / scales.size() numbers. bits: 4, integers from -8 to 7,
// or 8, from -127 to 127; integer = weight / scale, to nearest even, clamped to this range.
//
// A scale is a number of fp16. The first candidates are largest magnitude / 7 (or 127) and fractions of it.
// Half-quadratic steps add candidates: they fit the scale to the weights minus a part of the largest errors. The
// candidate with the least sum of squared errors is chosen. A block of zeros has the scale 1. Integer times scale is
// always finite in fp16.
//
// If the channels of a block differ in importance, more candidates are tried, and the candidate with the least sum of
// importance times squared error is chosen. A run with equal importance, including 0, gets the same scales as without
// importance.
//
// Throws Error if a weight is not finite or beyond fp16, or an importance is negative or not finite.
void quantise_blocks(std::span<const float> weights, const Importance& importance, int bits, int threads,
                     std::span<int8_t> integers, std::span<float> scales);

}  // namespace hexane::pack
