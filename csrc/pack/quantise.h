// Weights with fewer bits: integers with a scale for each channel, and palettes, which are tables of a few numbers with
// an index for each weight.
//
//    [0.5, -1.0, 0.24]   int8 of one channel: scale 1/127, integers 64 -127 30
//                        palette of 1 bit:    entries -1.0 and 0.37, indices 1 0 1
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/fp16.h"

namespace hexane::pack {

// A weight as [outer][channels][inner]; each channel has a scale.
struct Channels {
  int64_t outer = 1, channels = 1, inner = 1;
};

// Quantises weights. scale = largest magnitude / 127, rounded to fp16 and at least fp16's smallest positive number (1
// for a channel of zeros). integer = weight / scale, to nearest even, clamped to -127 to 127. Throws Error if a weight
// is not finite or a scale overflows fp16.
void quantise_int8(std::span<const float> weights, const Channels& channels, std::span<int8_t> integers,
                   std::span<float> scales);

// Returns at most 2^bits - less entries, ascending: the means of the clusters with the least sum of squared distances,
// rounded to fp16. If there are no more distinct weights than this, the entries are the weights; -0 counts as 0. bits:
// 1 to 8. Throws Error if a weight is not finite, if there are no weights, or if 2^bits - less is 0 or negative.
std::vector<fp16> palette_entries(std::span<const fp16> weights, int bits, int less = 0);

// Stores the index of each weight's nearest entry; of two equally near entries the lower. Entries have to be ascending.
// Returns the sum of the squared distances.
double palette_indices(std::span<const fp16> weights, std::span<const fp16> entries, std::span<int32_t> indices);

}  // namespace hexane::pack
