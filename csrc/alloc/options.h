// The work budget and the search techniques of the solver. Each technique can be switched off, so that tests can
// measure its gain. Correctness does not depend on the techniques.
#pragma once

#include <cstdint>
#include <optional>

namespace hexane::alloc {

// The unit of work is a visit of one item in one section, which takes a few nanoseconds. Unlike time, work does not
// depend on the machine.
inline constexpr int64_t kLowerBudget = 40'000'000;   // Work budget for lowering a packing.
inline constexpr int64_t kFitBudget = 4'000'000'000;  // Work budget for meeting a capacity.

struct Options {
  std::optional<int64_t> work_budget;  // replaces kLowerBudget and kFitBudget

  // Parts of the timeline that share no waiting item are packed separately; a finished part is not searched again.
  bool split = true;
  // An item refused at its lowest place must lie on another waiting item: it is lifted to the lowest top of a waiting
  // item.
  bool support = true;
  // If two items of the same span lie directly on each other, the better-ranked item is below.
  bool stack = true;
  // Sections that failed often are filled earlier.
  bool learn = true;
  // The search starts over with other ranks after a while, so that a bad early choice costs little.
  bool restart = true;
};

}  // namespace hexane::alloc
