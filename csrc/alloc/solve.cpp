// solve() = skyline packings, then search at lower and lower heights between the bound and the best packing.
#include "alloc/solve.h"

#include <algorithm>

#include "alloc/rank.h"
#include "alloc/search.h"
#include "alloc/skyline.h"
#include "alloc/timeline.h"
#include "core/error.h"

namespace hexane::alloc {
namespace {

// The lowest of one skyline packing per order, or the first within `goal`.
Packing pack_greedily(const Timeline& timeline, int64_t goal) {
  Packing best;
  for (const Order order : kOrders) {
    Packing packing = pack_skyline(timeline, rank_items(timeline, order));
    if (best.offsets.empty() || packing.height < best.height) best = std::move(packing);
    if (best.height <= goal) break;
  }
  return best;
}

Packing make_packing(const Timeline& timeline, std::vector<int64_t> offsets) {
  Packing packing{std::move(offsets), 0};
  for (size_t i = 0; i < packing.offsets.size(); i++) {
    packing.height = std::max(packing.height, packing.offsets[i] + timeline.items[i].size);
  }
  return packing;
}

// Narrows the gap between `bound` (proven) and the best height: the bound itself first, with half of the budget, then
// by bisection.
void lower(const Timeline& timeline, const Options& options, int64_t& bound, Packing& best) {
  int64_t budget = options.work_budget.value_or(kLowerBudget);
  int64_t low = bound;  // heights below are impossible or too hard
  int64_t target = low;
  while (low < best.height) {
    int64_t work = budget / 2;
    budget -= work;
    std::vector<int64_t> offsets;
    const Verdict verdict = search(timeline, target, options, work, offsets);
    budget += work;
    if (verdict == Verdict::kFits) {
      best = make_packing(timeline, std::move(offsets));
    } else {
      low = target + timeline.unit;
      if (verdict == Verdict::kImpossible) bound = std::max(bound, low);
    }
    target = low + (best.height - low) / timeline.unit / 2 * timeline.unit;
  }
}

void fit(const Timeline& timeline, const Options& options, int64_t capacity, int64_t bound, Packing& best) {
  const int64_t budget = options.work_budget.value_or(kFitBudget);
  int64_t work = budget;
  std::vector<int64_t> offsets;
  const Verdict verdict = search(timeline, capacity, options, work, offsets);
  if (verdict == Verdict::kImpossible) {
    fail("alloc", "capacity: got ", capacity, ", need more: it holds the bound ", bound, ", yet no packing fits it");
  }
  if (verdict == Verdict::kExhausted) {
    fail("alloc", "capacity: got ", capacity, ", need ", best.height,
         " for the best packing found within the work budget ", budget, " (bound ", bound,
         "); raise the budget or the capacity");
  }
  best = make_packing(timeline, std::move(offsets));
}

}  // namespace

Solution solve(const Problem& problem, const Options& options) {
  validate(problem);
  const Timeline timeline = make_timeline(problem);
  Solution solution;
  for (const int64_t load : timeline.load) solution.bound = std::max(solution.bound, load);
  if (problem.capacity && *problem.capacity < solution.bound) {
    fail("alloc", "capacity: got ", *problem.capacity, ", need at least ", solution.bound,
         ", the bytes live at one time");
  }

  Packing best = pack_greedily(timeline, problem.capacity.value_or(solution.bound));
  if (!problem.capacity) {
    lower(timeline, options, solution.bound, best);
  } else if (best.height > *problem.capacity) {
    fit(timeline, options, *problem.capacity, solution.bound, best);
  }

  solution.height = best.height;
  solution.offsets.assign(problem.buffers.size(), 0);
  for (size_t i = 0; i < best.offsets.size(); i++) solution.offsets[timeline.buffer[i]] = best.offsets[i];
  return solution;
}

}  // namespace hexane::alloc
