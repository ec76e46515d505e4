// The independent judge of a solution. The judge shares no code with the solver, and trusts neither the problem nor the
// solution.
#pragma once

#include "alloc/problem.h"

namespace hexane::alloc {

// Throws an Error for the first broken rule, with the ids of the buffers, the value found and the value required. A
// solution keeps these rules:
//   one offset per buffer; offset >= 0; offset a multiple of the problem's alignment and of the buffer's own; offset
//   equal to the buffer's fixed place; offset + size <= height (and capacity); two buffers of size > 0 that
//   live at the same time, neither in a gap, do not overlap in space.
void check(const Problem& problem, const std::vector<int64_t>& offsets, int64_t height);

}  // namespace hexane::alloc
