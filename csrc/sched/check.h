// The independent judge of orders, partitions and pairs. The judge shares no code with the solvers.
#pragma once

#include <optional>
#include <span>

#include "sched/partition.h"
#include "sched/problem.h"

namespace hexane::sched {

// Throws an Error for the first broken rule, with the layers, the value found and the value required:
//   every layer is in the order once, after the producers of its inputs and after the edges into it;
//   `peak`, if given, is the most bytes live at a step.
void check_order(const Problem& problem, std::span<const int32_t> order, std::optional<int64_t> peak = {});

// The order must be valid. Throws an Error for the first broken rule:
//   partitions are not empty, follow one another and hold the whole order;
//   peak, loaded and stored bytes agree with the tensors;
//   no partition of several layers exceeds the limit;
//   no partition is closed before a layer that would have fitted.
void check_partitions(const Problem& problem, std::span<const int32_t> order, std::span<const Partition> partitions,
                      int64_t limit);

}  // namespace hexane::sched
