// Cuts an order into partitions: ranges of layers whose tensors are in on-chip memory at the same time.
//
// In a partition a tensor takes its bytes from its first touch to its last. A layer is added on trial and lengthens
// some live ranges. If the bytes in use at a step of the longer ranges exceed the limit, the partition is closed before
// the layer. A layer that exceeds the limit alone has a partition of its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sched/problem.h"

namespace hexane::sched {

struct Partition {
  int32_t first = 0;   // First position in the order.
  int32_t end = 0;     // One past the last position.
  int64_t peak = 0;    // Most bytes in use at one step.
  int64_t loaded = 0;  // Bytes of tensors loaded from main memory.
  int64_t stored = 0;  // Bytes of tensors stored to main memory, because a later partition reads them or they are kept.
  bool operator==(const Partition&) const = default;
};

// Cuts `order`, which has all layers, each after its predecessors. limit: bytes of on-chip memory.
std::vector<Partition> partition(const Problem& problem, std::span<const int32_t> order, int64_t limit);

}  // namespace hexane::sched
