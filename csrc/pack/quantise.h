// Weights with fewer bits: integers with a scale for each channel, and palettes, whose indices name one of a few
// numbers.
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

// scale = largest magnitude / 127, rounded to fp16 and at least its smallest number (1 for a channel of zeros);
// integer = weight / scale, to nearest even, within -127 to 127. Throws for a weight that is not finite, and for a
// scale that fp16 does not hold.
void quantise_int8(std::span<const float> weights, const Channels& channels, std::span<int8_t> integers,
                   std::span<float> scales);

// At most 2^bits entries, or so many less, ascending: the means of the clusters whose sum of squared distances is the
// least there is, rounded to fp16. All distinct weights where there are no more; -0 counts as 0. bits: 1 to 8. Throws
// for a weight that is not finite, for no weights, and if no entry is left.
std::vector<fp16> palette_entries(std::span<const fp16> weights, int bits, int less = 0);

// The index of the nearest entry, the lower of two that are as near. Entries ascend. Returns the sum of the squared
// distances.
double palette_indices(std::span<const fp16> weights, std::span<const fp16> entries, std::span<int32_t> indices);

}  // namespace hexane::pack
