// The allocator: greedy packings, and a search only if all of them are higher than the bound or the given capacity.
#pragma once

#include <cstdint>
#include <optional>

#include "alloc/options.h"
#include "alloc/problem.h"

namespace hexane::alloc {

// With a capacity, returns any packing within it. Throws Error if no packing fits, or if the work budget is used up;
// the error names the capacity and the bound or the best height. Without a capacity, returns the lowest packing found
// within the work budget. The same problem and options give the same solution on every machine.
Solution solve(const Problem& problem, const Options& options = {});

// Returns the lowest greedy packing if it is within `capacity`, else a packing that a search finds within the work
// budget. Returns nothing if both fail. Does not search if the lower bound exceeds `capacity`. Ignores
// `problem.capacity`.
std::optional<Solution> solve_within(const Problem& problem, int64_t capacity, const Options& options = {});

}  // namespace hexane::alloc
