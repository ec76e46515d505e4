// The exact packer: finds a packing within a capacity or proves that there is none, by depth-first search with
// restarts.
//
// A state is a skyline (as in skyline.h) and, for each waiting item, the lowest place it can take. Some section in a
// valley is chosen, the one with the fewest items that could lie on its floor, and of these the best ranked:
//
//      either it lies there                        or it lies higher, never here again
//        |  +--+     +--                             |  +--+     +--
//        |  |  |+--+ |                               |  |  |     |        lowest(x) = the lowest top of a waiting item
//        |  |  || x| |                               |  |  |.....|        it could lie on; the floor of a section
//        +--+--++--+-+----                           +--+--+-----+----    rises to the lowest of its waiting items
//
// This meets every packing that cannot sink: an item lies on the floor or on another item. A state fails where the
// floor of a section plus the sizes still waiting in it exceed the capacity.
#pragma once

#include <cstdint>
#include <vector>

#include "alloc/options.h"
#include "alloc/timeline.h"

namespace hexane::alloc {

enum class Verdict { kFits, kImpossible, kExhausted };

// Fills `offsets` (one per item) when the verdict is kFits; takes the work it did off `work_left` (see
// Options::work_budget).
Verdict search(const Timeline& timeline, int64_t capacity, const Options& options, int64_t& work_left,
               std::vector<int64_t>& offsets);

}  // namespace hexane::alloc
