// The exact packer: finds a packing within a capacity or proves that there is none, by depth-first search with
// restarts.
//
// A state is a skyline (as in skyline.h) and, for each waiting item, the lowest offset at which it can lie. In a valley
// the search chooses the section whose floor has the fewest candidate items, and of these candidates the best-ranked
// item:
//
//      either it lies there                        or it lies higher, never here again
//        |  +--+     +--                             |  +--+     +--
//        |  |  |+--+ |                               |  |  |     |        lowest(x) = the lowest top of a waiting item
//        |  |  || x| |                               |  |  |.....|        it could lie on; the floor of a section
//        +--+--++--+-+----                           +--+--+-----+----    rises to the lowest of its waiting items
//
// The search visits every packing in which each item lies on the floor or on another item. A state fails if a section's
// floor plus the sizes of the section's waiting items exceed the capacity.
#pragma once

#include <cstdint>
#include <vector>

#include "alloc/options.h"
#include "alloc/timeline.h"

namespace hexane::alloc {

enum class Verdict { kFits, kImpossible, kExhausted };

// Fills `offsets` (one per item) when the verdict is kFits; subtracts the search's work from `work_left` (see
// Options::work_budget).
Verdict search(const Timeline& timeline, int64_t capacity, const Options& options, int64_t& work_left,
               std::vector<int64_t>& offsets);

}  // namespace hexane::alloc
