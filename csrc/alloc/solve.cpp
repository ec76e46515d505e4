// solve(): greedy packings, then searches at ever lower heights between the bound and the best packing.
#include "alloc/solve.h"

#include <algorithm>
#include <optional>

#include "alloc/first_fit.h"
#include "alloc/rank.h"
#include "alloc/search.h"
#include "alloc/skyline.h"
#include "alloc/timeline.h"
#include "core/error.h"

namespace hexane::alloc {
namespace {

// The two ways to pack: over skylines if the problem is plain, otherwise item by item.
class Packer {
 public:
  Packer(const Problem& problem, const Timeline& timeline) : timeline_(timeline) {
    if (!is_plain(problem)) first_fit_.emplace(problem, timeline);
  }

  const Timeline& timeline() const { return timeline_; }

  Packing pack(const std::vector<int32_t>& rank) {
    return first_fit_ ? first_fit_->pack(rank) : pack_skyline(timeline_, rank);
  }

  Verdict search(int64_t capacity, const Options& options, int64_t& work_left, std::vector<int64_t>& offsets) {
    return first_fit_ ? first_fit_->search(capacity, options, work_left, offsets)
                      : alloc::search(timeline_, capacity, options, work_left, offsets);
  }

 private:
  const Timeline& timeline_;
  std::optional<FirstFit> first_fit_;
};

// Makes one greedy packing per order. Returns the first packing within `goal`, or else the lowest packing.
Packing pack_greedily(Packer& packer, int64_t goal) {
  Packing best;
  for (const Order order : kOrders) {
    Packing packing = packer.pack(rank_items(packer.timeline(), order));
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
void lower(Packer& packer, const Options& options, int64_t& bound, Packing& best) {
  const Timeline& timeline = packer.timeline();
  int64_t budget = options.work_budget.value_or(kLowerBudget);
  int64_t low = bound;  // lower heights are impossible, or their search ran out of budget
  int64_t target = low;
  while (low < best.height) {
    int64_t work = budget / 2;
    budget -= work;
    std::vector<int64_t> offsets;
    const Verdict verdict = packer.search(target, options, work, offsets);
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

void fit(Packer& packer, const Options& options, int64_t capacity, int64_t bound, Packing& best) {
  const int64_t budget = options.work_budget.value_or(kFitBudget);
  int64_t work = budget;
  std::vector<int64_t> offsets;
  const Verdict verdict = packer.search(capacity, options, work, offsets);
  if (verdict == Verdict::kImpossible) {
    fail("alloc", "capacity: got ", capacity, ", need more: it holds the bound ", bound, ", yet no packing fits it");
  }
  if (verdict == Verdict::kExhausted) {
    fail("alloc", "capacity: got ", capacity, ", need ", best.height,
         " for the best packing found within the work budget ", budget, " (bound ", bound,
         "); raise the budget or the capacity");
  }
  best = make_packing(packer.timeline(), std::move(offsets));
}

int64_t bound_of(const Problem& problem, const Timeline& timeline) {
  int64_t bound = 0;
  for (const int64_t load : timeline.load) bound = std::max(bound, load);
  for (const Buffer& buffer : problem.buffers)
    if (buffer.size && buffer.at) bound = std::max(bound, *buffer.at + round_up(buffer.size, problem.alignment));
  return bound;
}

Solution to_solution(const Problem& problem, const Timeline& timeline, const Packing& best, int64_t bound) {
  Solution solution{{}, best.height, bound};
  for (const Buffer& buffer : problem.buffers) solution.offsets.push_back(buffer.at.value_or(0));
  for (size_t i = 0; i < best.offsets.size(); i++) solution.offsets[timeline.buffer[i]] = best.offsets[i];
  return solution;
}

}  // namespace

Solution solve(const Problem& problem, const Options& options) {
  validate(problem);
  const Timeline timeline = make_timeline(problem);
  Packer packer(problem, timeline);
  int64_t bound = bound_of(problem, timeline);
  if (problem.capacity && *problem.capacity < bound) {
    fail("alloc", "capacity: got ", *problem.capacity, ", need at least ", bound,
         ", the bytes live at one time or the end of a buffer in its place");
  }

  Packing best = pack_greedily(packer, problem.capacity.value_or(bound));
  if (!problem.capacity) {
    lower(packer, options, bound, best);
  } else if (best.height > *problem.capacity) {
    fit(packer, options, *problem.capacity, bound, best);
  }
  return to_solution(problem, timeline, best, bound);
}

std::optional<Solution> solve_within(const Problem& problem, int64_t capacity, const Options& options) {
  validate(problem);
  const Timeline timeline = make_timeline(problem);
  const int64_t bound = bound_of(problem, timeline);
  if (capacity < bound) return std::nullopt;
  Packer packer(problem, timeline);
  Packing best = pack_greedily(packer, bound);
  if (best.height > capacity) {
    int64_t work = options.work_budget.value_or(kLowerBudget);
    std::vector<int64_t> offsets;
    if (packer.search(capacity, options, work, offsets) != Verdict::kFits) return std::nullopt;
    best = make_packing(timeline, std::move(offsets));
  }
  return to_solution(problem, timeline, best, bound);
}

}  // namespace hexane::alloc
