// A problem as a graph: the predecessors of each layer, and the tensors that the layer reads and produces.
#pragma once

#include <span>
#include <vector>

#include "sched/problem.h"

namespace hexane::sched {

// Lists of numbers, one for each owner, contiguous in memory.
class Lists {
 public:
  Lists() = default;
  // Rows (owner, item) in any order. The items of an owner keep their order.
  Lists(size_t num_owners, std::span<const std::pair<int32_t, int32_t>> rows);
  std::span<const int32_t> operator[](size_t owner) const {
    return {items_.data() + begin_[owner], begin_[owner + 1] - begin_[owner]};
  }

 private:
  std::vector<size_t> begin_;
  std::vector<int32_t> items_;
};

struct Graph {
  Lists predecessors;  // for each layer: its direct predecessors, each once
  Lists successors;
  Lists reads;                   // For each layer: tensors that it reads.
  Lists makes;                   // For each layer: tensors that it produces.
  std::vector<int32_t> level;    // For each layer: the length of the longest path from a layer without predecessors.
  std::vector<int32_t> sorted;   // The layers, sorted by level, then by number.
  std::vector<int64_t> outputs;  // For each layer: bytes of its results.
  std::vector<int64_t> stays;    // For each layer: bytes of its results that are read or kept.
};

// The problem must be valid. Throws Error if the graph has a cycle.
Graph make_graph(const Problem& problem);

// Returns the most bytes live at a step, for an order of all layers.
int64_t peak_bytes(const Problem& problem, const Graph& graph, std::span<const int32_t> order);

}  // namespace hexane::sched
