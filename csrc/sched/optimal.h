// Finds the order that needs the fewest bytes, with a proof.
//
// The graph is cut where one layer is comparable to all others: every order runs it between the same two sets, so the
// parts are solved one by one. A part is solved by search over its downsets (sets of layers that hold all their
// predecessors), from one bound to the next. One fact keeps the search small: the live bytes of a downset are a
// submodular function of it. So
//
//   * a layer that fits, and frees at least the bytes of its results, is run at once, which loses no optimal order;
//   * when the search from a downset S meets a larger one, Y, with no more live bytes than S, and all sets met before
//     have more, the search starts anew from Y: every order through S can go through Y.
//
//        live |  .-.      .-.          From S only the states of one hill are kept at a time.
//             | /   \  .-'   \         .
//             |S     '-'      Y
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sched/graph.h"

namespace hexane::sched {

// The unit of work is one word of a set that is read, a few nanoseconds. Unlike time, work does not depend on the
// machine.
inline constexpr int64_t kWorkBudget = 4'000'000'000;

// A part with more layers keeps the given order, and its bound is the bound of single layers.
inline constexpr int32_t kMostLayers = 2048;

struct Optimum {
  std::vector<int32_t> order;
  int64_t peak = 0;    // Peak in bytes.
  int64_t bound = 0;   // No order needs fewer bytes; if peak == bound, the order is proven optimal.
  int64_t states = 0;  // Downsets that the search visited.
};

// Returns an order that needs no more bytes than `start`, an order of all layers. If the work budget ends first,
// returns the best order found, with the bound proven until then. The same problem, start and budget give the same
// result on every machine.
Optimum schedule_optimally(const Problem& problem, const Graph& graph, std::vector<int32_t> start,
                           std::optional<int64_t> work_budget = {});

}  // namespace hexane::sched
