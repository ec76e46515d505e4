// A part of a graph between two layers that are comparable to all others. The layers of a part are numbered from 0.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sched/graph.h"

namespace hexane::sched {

// A tensor whose last readers are in this part, so that a layer of the part frees it.
struct Freed {
  int64_t bytes = 0;
  int32_t producer = -1;  // the layer that makes the tensor; -1: made before the part
  std::vector<int32_t> readers;
};

struct Part {
  std::vector<int32_t> layers;              // Number in the part -> layer; predecessors come first.
  std::vector<std::vector<int32_t>> waits;  // For each number: predecessors in the part.
  std::vector<std::vector<int32_t>> frees;  // For each number: the tensors that the layer reads, as indices in `freed`.
  std::vector<int64_t> needs;               // For each number: bytes of the layer's results and scratch.
  std::vector<int64_t> stays;               // For each number: bytes of the layer's results that stay live afterwards.
  std::vector<Freed> freed;
  int64_t start = 0;  // Bytes live before the first layer.
  int64_t end = 0;    // Bytes live after the last layer.
  int32_t num_layers() const { return static_cast<int32_t>(layers.size()); }
};

// The parts in the order they run. A layer that is comparable to all other layers begins a part.
std::vector<Part> split(const Problem& problem, const Graph& graph);

// Returns a lower bound of every order's peak. While a layer runs, the tensors that its predecessors produce for it or
// for its successors are live in every order. The bound is the largest sum of their bytes, over all layers.
int64_t part_bound(const Part& part);

// Returns a weaker lower bound in linear time. For one layer it counts the tensors that the layer makes, the tensors
// that the layer reads and the part frees, and the tensors that are live during the whole part.
int64_t layer_bound(const Part& part);

// Returns the peak bytes of an order of the part's layers.
int64_t part_peak(const Part& part, std::span<const int32_t> order);

}  // namespace hexane::sched
