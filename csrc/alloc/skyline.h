// The greedy packer: fills the lowest valley of the skyline.
//
//      height |      +--+           The skyline is the top of the placed buffers. Its lowest stretch gets the first
//             |  +---+  |           item, in the given order, whose span fits inside. When none fits, the valley is
//             |  |...|  +---        filled with waste up to its lower wall, as the dotted one is.
//             +--+-----------> section
//
// No item can move down afterwards, and no two items are compared. Packing takes O(n log n) for most orders.
#pragma once

#include <cstdint>
#include <vector>

#include "alloc/timeline.h"

namespace hexane::alloc {

struct Packing {
  std::vector<int64_t> offsets;  // one per item
  int64_t height = 0;
};

// `rank` has a different number below 2^31 for each item. Items with smaller ranks are preferred.
Packing pack_skyline(const Timeline& timeline, const std::vector<int32_t>& rank);

}  // namespace hexane::alloc
