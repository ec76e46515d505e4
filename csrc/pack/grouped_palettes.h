// Palettes of groups of channels: each group has a table of its own.
//
//    4 channels, groups of 2, 1 bit:  channels 0 and 1 name entries of table 0, channels 2 and 3 of table 1
#pragma once

#include <cstdint>
#include <span>

#include "core/fp16.h"

namespace hexane::pack {

// A weight as [outer][groups][inner]; `inner` includes the channels of a group.
struct Groups {
  int64_t outer = 1, groups = 1, inner = 1;
};

// entries: [groups][2^bits], ascending; a group with fewer entries repeats its last one. indices: in the order of the
// weights. A group of at most 1024 distinct numbers gets the clusters with the least sum of squared distances. A larger
// group gets the result of Lloyd's steps from the best clusters of runs of adjacent values. bits: 1 to 8. Throws Error
// if a weight is not finite.
void palette_groups(std::span<const fp16> weights, const Groups& shape, int bits, int threads, std::span<fp16> entries,
                    std::span<uint8_t> indices);

}  // namespace hexane::pack
