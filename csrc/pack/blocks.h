// Integers with a scale for each block of a weight.
//
//    a block [0.5, -1.0, 0.24] of 4 bits:  scale 1/7, integers 4 -7 2
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace hexane::pack {

// How much a squared error counts in each input channel, for instance the mean square of a layer's input there. Blocks
// lie in `rows` runs of one length; all blocks of a run have the same input channels. A block has
// channels.size() / rows of them, and the numbers of a channel (the taps of a filter) are neighbours in it:
//
//    2 output channels, 4 input channels, blocks of 2: rows = 2
//    weights  o0 c0 c1   o1 c0 c1   o0 c2 c3   o1 c2 c3
//    channels    m0 m1                 m2 m3
//
// No channels: all errors count alike.
struct Importance {
  std::span<const double> channels;
  size_t rows = 1;
};

// weights: blocks one after the other, each of weights.size() / scales.size() numbers. bits: 4, integers from -8 to 7,
// or 8, from -127 to 127; integer = weight / scale, to nearest even, within these.
//
// A scale is a number of fp16. The first tries are largest magnitude / 7 (or 127) and parts of it. Half-quadratic steps
// follow: they fit the scale to the weights minus a part of the largest errors. The scale with the least sum of squared
// errors is taken. A block of zeros has the scale 1. Integer times scale is finite in fp16.
//
// Where the channels of a block differ in importance, more scales are tried, and the one with the least sum of
// importance times squared error is taken. A run of equal importance, also of 0, gets the scales it gets without any.
//
// Throws for a weight that is not finite or beyond fp16, and for an importance that is negative or not finite.
void quantise_blocks(std::span<const float> weights, const Importance& importance, int bits, int threads,
                     std::span<int8_t> integers, std::span<float> scales);

}  // namespace hexane::pack
