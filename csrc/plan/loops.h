// The runs of a plan's steps in order, loops unrolled.
#pragma once

#include <vector>

#include "plan/reader.h"

namespace hexane::plan {

inline constexpr uint64_t kMostRuns = uint64_t{1} << 20;  // Most runs of steps in loops.
// The largest begin and end of a range, and the largest total move over all trips: a runtime counts rows in 32 bits.
inline constexpr int64_t kMostMove = int64_t{1} << 27;
inline constexpr size_t kMostDepth = 8;

// One run of a step: the range of its cut axis, clipped to the output's extent and never empty; [0, 0) for a step
// outside of loops, whose range the plan gives.
struct Run {
  uint32_t step;
  bool last;  // this is the step's last run
  int64_t begin;
  int64_t end;
};

// Returns the runs of the steps [first, end). No loop may cross `first` or `end`, and the loops must have been
// verified.
std::vector<Run> unroll(const Plan& plan, size_t first, size_t end);

// Throws Error unless the loops are nested in order and not too many, and every step in them is cut along an axis.
void check_loops(const Plan& plan);

// Returns the outermost loops, in order.
std::vector<PlanLoop> outer_loops(const Plan& plan);

}  // namespace hexane::plan
