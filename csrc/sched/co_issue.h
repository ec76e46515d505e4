// Finds layers that the multiply-accumulate array and the planar engine could run at the same time.
//
// The rules are those decoded from Apple's compiler (ANE guide, chapter 22). Hardware was not seen to run two layers at
// once: on M4 and M6 tasks ran one after another (M6 study). So a pair is only reported. Times and memory are computed
// as if the layers of a pair ran one after another.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sched/problem.h"

namespace hexane::sched {

enum class Unit : uint8_t { kNe, kPe, kDma };  // multiply-accumulate array, planar engine, transfers

// The properties of a layer that the rules use.
struct Issue {
  Unit unit = Unit::kNe;
  int32_t engine = 0;     // The engine of the chip that runs the layer.
  int32_t position = -1;  // Position in the order; -1: not scheduled.
  int32_t partition = -1;
  bool chained_input = false;    // An input is chained, or could be.
  bool streams_output = false;   // The output goes to main memory.
  bool resident_weight = false;  // The layer is a matrix product whose weight stays on chip.
};

// Why two layers are no pair, in the order of the checks; kNone: they are a pair.
enum class Disqualifier : uint8_t {
  kNone,
  kUnscheduled,
  kSameClass,  // not one layer on the array and one on the planar engine
  kOtherEngine,
  kDependent,      // One layer reads the other's result, or must run before it.
  kChainedInput,   // Chained layers are in a pipeline already.
  kBothStream,     // Both layers stream to main memory over one channel; a product with a resident weight is exempt.
  kNotNeighbours,  // Other layers run between the two, or a partition ends.
  kPaired,         // One of the two layers is in a pair already.
};

// Returns why the layers `a` and `b` may not be issued together; kNone if they may.
Disqualifier why_not_together(const Problem& problem, std::span<const Issue> issues, int32_t a, int32_t b);

struct Pairs {
  std::vector<int32_t> partner;  // For each layer: the other layer of its pair; -1: none.
  // For each layer: the verdict on this layer and the next layer in the order; kUnscheduled for the last layer.
  std::vector<Disqualifier> verdict;
};

// Pairs adjacent layers, from the first layer to the last.
Pairs find_pairs(const Problem& problem, std::span<const Issue> issues);

// The check shares no code with the search. Throws Error for the first pair that breaks a rule, with the rule.
void check_pairs(const Problem& problem, std::span<const Issue> issues, std::span<const int32_t> partner);

}  // namespace hexane::sched
