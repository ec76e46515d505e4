// Palettes of groups of channels: each group has a table of its own.
//
//    4 channels, groups of 2, 1 bit:  channels 0 and 1 name entries of table 0, channels 2 and 3 of table 1
#pragma once

#include <cstdint>
#include <span>

#include "core/fp16.h"

namespace hexane::pack {

// A weight as [outer][groups][inner]; the channels of a group are part of inner.
struct Groups {
  int64_t outer = 1, groups = 1, inner = 1;
};

// entries: [groups][2^bits], ascending, the last repeated where a group has fewer; indices as the weights lie. A group
// of at most 1024 distinct numbers gets the clusters of the least sum of squared distances; a larger one such as
// Lloyd's steps find from the best clusters of its runs of neighbours. bits: 1 to 8. Throws for a weight that is
// not finite.
void palette_groups(std::span<const fp16> weights, const Groups& shape, int bits, int threads, std::span<fp16> entries,
                    std::span<uint8_t> indices);

}  // namespace hexane::pack
