// How hard the solver tries. The tricks have names so that a test can switch each off and measure its gain. Correct
// answers do not depend on them.
#pragma once

#include <cstdint>
#include <optional>

namespace hexane::alloc {

// Work is counted in looks at one item in one section, a few nanoseconds each: unlike time the same on every machine.
inline constexpr int64_t kLowerBudget = 40'000'000;   // to lower a packing
inline constexpr int64_t kFitBudget = 4'000'000'000;  // to meet a capacity

struct Options {
  std::optional<int64_t> work_budget;  // instead of the two above

  // Parts of the timeline that no waiting item joins are packed one by one; a finished part is never redone.
  bool split = true;
  // An item refused at its lowest place must lie on another waiting item: it is lifted to the lowest such top.
  bool support = true;
  // Where two items of the same span lie directly on each other, the better ranked one is below.
  bool stack = true;
  // Sections that failed often are decided earlier.
  bool learn = true;
  // The search starts over with other ranks after a while, so that an early mistake costs little.
  bool restart = true;
};

}  // namespace hexane::alloc
