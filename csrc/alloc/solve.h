// The allocator: greedy packings first, search only where they leave a gap above the bound.
#pragma once

#include <cstdint>
#include <optional>

#include "alloc/options.h"
#include "alloc/problem.h"

namespace hexane::alloc {

// With a capacity: any packing within it. Throws if there is none, or if the work budget ended first; the error names
// the capacity and the bound or the best height. Without: the lowest packing found within the work budget. The same
// problem and options give the same solution on every machine.
Solution solve(const Problem& problem, const Options& options = {});

// The lowest greedy packing if it keeps the capacity, else one that a search finds there within the work budget.
// Nothing where neither does, at once where the bytes live at one time exceed it. `problem.capacity` does not count.
std::optional<Solution> solve_within(const Problem& problem, int64_t capacity, const Options& options = {});

}  // namespace hexane::alloc
