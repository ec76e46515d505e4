// The lower bound of every packing: the largest sum of sizes live at one time, or the largest end of a buffer with a
// fixed place, whichever is larger.
//
//      step     0  1  2  3
//      a (5)    ####
//      b (3)       #######        sums 5 8 7 7, bound 8
//      c (4)          ####
#pragma once

#include "alloc/problem.h"

namespace hexane::alloc {

// Returns the bound in bytes. Sizes are rounded up to the alignment.
int64_t bound(const Problem& problem);

}  // namespace hexane::alloc
