// The list scheduler: the best of the layers whose predecessors have run, by six rules. Each rule breaks the ties of
// the previous rules.
//
//   1 ring            a layer at a ring buffer goes first
//   2 branch sibling  the layer with more operands that no other layer waits for: running it frees them
//   3 merge sibling   the layer that is the last missing predecessor of more merges (layers with several)
//   4 working set     the layer in the branch that was begun last; then the head of a branch with the larger footprint,
//                     if its fork and merge fit the ceiling, and so do live bytes plus footprint
//   5 topological     the layer closer to the beginning of the graph (fewer layers on the longest way to it)
//   6 number          the layer with the lower number
//
// Apple's compiler has these rules in this order (ANE guide, chapter 22). The scores of the two sibling rules are not
// published: Hexane uses scores of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "sched/graph.h"

namespace hexane::sched {

enum class Rule : uint8_t { kOnly, kRing, kBranch, kMerge, kWorkingSet, kTopological, kNumber };

// The scores of a layer. Higher scores are better, except for the last two scores.
struct Score {
  bool ring = false;
  int32_t branch = 0;
  int32_t merge = 0;
  int32_t begun = 0;      // Count of begun branches when the layer's branch began; 0: the layer is in none.
  int64_t footprint = 0;  // Footprint of the branch that the layer begins, if the branch fits.
  int32_t level = 0;
  int32_t layer = 0;
  bool operator==(const Score&) const = default;
};

struct Choice {
  Score score;
  Rule rule =
      Rule::kOnly;  // the first rule that preferred the layer to the second-best layer; kOnly: no other layer was ready
};

// Schedules every layer. ceiling: bytes of on-chip memory for rule 4. O(n log n) in layers, tensors and readers
// together.
std::vector<Choice> schedule_greedily(const Problem& problem, const Graph& graph, int64_t ceiling);

}  // namespace hexane::sched
