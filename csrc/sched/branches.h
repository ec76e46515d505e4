// The diamonds of a graph: a layer (the fork) with several paths that meet again in one layer (the merge).
//
//            +-- b -- c --+           Two branches: b c and d.
//     fork --+            +-- merge
//            +---- d -----+
//
// A branch is a run of layers, or of inner diamonds. A branch is entered only at its head and left only to the merge. A
// direct edge from fork to merge is no branch.
#pragma once

#include <cstdint>
#include <vector>

#include "sched/graph.h"

namespace hexane::sched {

struct Branch {
  int32_t head = 0;   // The layer that begins the branch.
  int32_t outer = 0;  // The outer branch, which contains this branch's fork; -1: none.
  int64_t ends = 0;   // Bytes of the results of fork and merge.
  // The most live bytes of the branch's own tensors while the branch runs alone. Inner branches run in the order of
  // descending footprints.
  int64_t footprint = 0;
};

struct Branches {
  std::vector<Branch> branches;
  std::vector<int32_t> inner;  // For each layer: the innermost branch that contains it; -1: none.
  std::vector<int32_t> begun;  // For each layer: the branch that it begins; -1: none.
};

Branches find_branches(const Problem& problem, const Graph& graph);

}  // namespace hexane::sched
