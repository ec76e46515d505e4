// Finds layers that the multiply-accumulate array and the planar engine could run at the same time.
//
// The rules are those decoded from Apple's compiler (ANE guide, chapter 22). On silicon it was not seen to happen: on
// M4 and M6 tasks ran one after another (M6 study). So a pair is a finding, never a promise: times and memory are
// counted as if the two ran apart.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sched/problem.h"

namespace hexane::sched {

enum class Unit : uint8_t { kNe, kPe, kDma };  // multiply-accumulate array, planar engine, transfers

// The facts of a layer that the rules read.
struct Issue {
  Unit unit = Unit::kNe;
  int32_t engine = 0;     // the engine of the chip that it was given to
  int32_t position = -1;  // in the order; -1: not scheduled
  int32_t partition = -1;
  bool chained_input = false;    // an input is chained, or could be
  bool streams_output = false;   // the output goes to main memory
  bool resident_weight = false;  // a matrix product whose weight stays on chip
};

// Why two layers are no pair, in the order in which it is asked; kNone: they are one.
enum class Disqualifier : uint8_t {
  kNone,
  kUnscheduled,
  kSameClass,      // or one is a transfer: a pair has one layer of each engine
  kOtherEngine,    // they were given to different engines of the chip
  kDependent,      // one reads a result of the other, or must run before it
  kChainedInput,   // chained layers are in a pipeline already
  kBothStream,     // and would share one channel, but for a product with a resident weight
  kNotNeighbours,  // other layers run between them, or a partition ends
  kPaired,         // one of them is in a pair already
};

// True if the layers `a` and `b`, by number, may be issued together.
Disqualifier why_not_together(const Problem& problem, std::span<const Issue> issues, int32_t a, int32_t b);

struct Pairs {
  std::vector<int32_t> partner;       // by layer; -1: none
  std::vector<Disqualifier> verdict;  // by layer: of it and the next one in the order; the last has kUnscheduled
};

// Pairs of neighbours, from the first layer to the last.
Pairs find_pairs(const Problem& problem, std::span<const Issue> issues);

// Shares no code with the search. Throws the first pair that is not one, with the rule it breaks.
void check_pairs(const Problem& problem, std::span<const Issue> issues, std::span<const int32_t> partner);

}  // namespace hexane::sched
