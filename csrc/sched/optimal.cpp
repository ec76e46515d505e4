// For each part: the given order, a beam search, and if both are above the bound, the exact search.
#include "sched/optimal.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <tuple>

#include "sched/downsets.h"
#include "sched/part.h"

namespace hexane::sched {
namespace {

constexpr int32_t kBeamWidth = 64;

struct Best {
  std::vector<int32_t> order;
  int64_t peak = 0;
};

void turn(Direction direction, std::vector<int32_t>& order) {
  if (direction == Direction::kBackward) std::reverse(order.begin(), order.end());
}

// Keeps only the best states for each number of layers. Finds an order with a lower peak than the best order, or
// nothing.
void search_beam(const Part& part, Direction direction, int64_t bound, int64_t budget, int64_t& work_left, Best& best) {
  Downsets sets(part, direction, bound);
  const int64_t most = std::min(budget, work_left);
  int64_t counted = 0;
  std::vector<std::vector<int32_t>> with(part.layers.size() + 1);  // number of layers -> states
  with[sets[0].num_layers].push_back(0);
  for (auto& states : with) {
    const auto better = [&](int32_t a, int32_t b) {
      return std::tie(sets[a].peak, sets[a].live, a) < std::tie(sets[b].peak, sets[b].live, b);
    };
    std::sort(states.begin(), states.end(), better);
    states.erase(std::unique(states.begin(), states.end()), states.end());
    if (states.size() > kBeamWidth) states.resize(kBeamWidth);
    for (const int32_t state : states) {
      work_left -= sets.work() - counted;
      counted = sets.work();
      if (counted > most) return;
      sets[state].done = true;
      if (sets.is_full(state)) {
        best.peak = sets[state].peak;
        best.order.clear();
        sets.restart(state, best.order);
        turn(direction, best.order);
        return;
      }
      sets.expand(state, best.peak, [&](int32_t child) { with[sets[child].num_layers].push_back(child); });
    }
  }
}

// The exact search from one end, a state at a time: states by peak, then by number of layers.
class Search {
 public:
  Search(const Part& part, Direction direction, int64_t bound, int64_t limit)
      : direction_(direction), limit_(limit), sets_(part, direction, bound) {
    queue_.emplace(bound, sets_[0].num_layers, 0);
  }

  enum class Result : uint8_t { kGoesOn, kFound, kNothing };

  // kFound: `order` has the minimum peak, `bound`. kNothing: no order has a peak below the limit. Raises `bound` to the
  // peak that is proven to be needed so far.
  Result advance(int64_t& bound, std::vector<int32_t>& order) {
    for (;; queue_.pop()) {
      if (queue_.empty()) return Result::kNothing;
      const auto [peak, num_layers, state] = queue_.top();
      if (!sets_[state].done && sets_[state].peak == peak) break;
    }
    const auto [peak, num_layers, state] = queue_.top();
    queue_.pop();
    bound = std::max(bound, peak);
    if (sets_.is_full(state)) {
      sets_.restart(state, order_);
      turn(direction_, order_);
      order = std::move(order_);
      bound = peak;
      return Result::kFound;
    }
    if (state != 0 && sets_[state].live <= sets_[0].live) {
      num_states_ += sets_.size();
      sets_.restart(state, order_);
      queue_ = {};
      queue_.emplace(peak, num_layers, 0);
      return Result::kGoesOn;
    }
    sets_[state].done = true;
    sets_.expand(state, limit_,
                 [&](int32_t child) { queue_.emplace(sets_[child].peak, sets_[child].num_layers, child); });
    return Result::kGoesOn;
  }

  int64_t work() const { return sets_.work(); }
  int64_t num_states() { return num_states_ + sets_.size(); }

 private:
  using Entry = std::tuple<int64_t, int32_t, int32_t>;  // peak, number of layers, state

  Direction direction_;
  int64_t limit_;
  Downsets sets_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
  std::vector<int32_t> order_;  // layers that lead to the root
  int64_t num_states_ = 0;
};

// Alternates between searches from both ends, since either may be the faster one. Raises the bound to the proven value,
// and leaves the best order in `best`. Returns the number of states.
int64_t search_exactly(const Part& part, int64_t& bound, int64_t& work_left, Best& best) {
  Search forward(part, Direction::kForward, bound, best.peak);
  Search backward(part, Direction::kBackward, bound, best.peak);
  while (forward.work() + backward.work() <= work_left) {
    Search& next = forward.work() <= backward.work() ? forward : backward;
    std::vector<int32_t> order;
    const Search::Result result = next.advance(bound, order);
    if (result == Search::Result::kGoesOn) continue;
    if (result == Search::Result::kFound) {
      best = {std::move(order), bound};
    } else {
      bound = best.peak;
    }
    break;
  }
  work_left -= forward.work() + backward.work();
  return forward.num_states() + backward.num_states();
}

}  // namespace

Optimum schedule_optimally(const Problem& problem, const Graph& graph, std::vector<int32_t> start,
                           std::optional<int64_t> work_budget) {
  const int64_t budget = work_budget.value_or(kWorkBudget);
  std::vector<int32_t> position(problem.layers.size());
  for (size_t i = 0; i < start.size(); i++) position[start[i]] = static_cast<int32_t>(i);

  const std::vector<Part> parts = split(problem, graph);
  Optimum optimum;
  std::vector<Best> best(parts.size());
  std::vector<int64_t> bounds(parts.size());
  for (size_t i = 0; i < parts.size(); i++) {
    const Part& part = parts[i];
    best[i].order.resize(part.layers.size());
    for (int32_t v = 0; v < part.num_layers(); v++) best[i].order[v] = v;
    std::sort(best[i].order.begin(), best[i].order.end(),
              [&](int32_t a, int32_t b) { return position[part.layers[a]] < position[part.layers[b]]; });
    best[i].peak = part_peak(part, best[i].order);
    bounds[i] = part.num_layers() > kMostLayers ? layer_bound(part) : part_bound(part);
    optimum.bound = std::max(optimum.bound, bounds[i]);
  }
  // The highest part comes first. Parts below the highest part's proven need are good enough already.
  std::vector<size_t> by_peak(parts.size());
  std::iota(by_peak.begin(), by_peak.end(), 0);
  std::stable_sort(by_peak.begin(), by_peak.end(), [&](size_t a, size_t b) { return best[a].peak > best[b].peak; });
  int64_t work_left = budget;
  for (const size_t i : by_peak) {
    if (parts[i].num_layers() > kMostLayers) continue;
    int64_t bound = std::max(bounds[i], optimum.bound);
    for (const Direction direction : {Direction::kForward, Direction::kBackward})
      if (best[i].peak > bound) search_beam(parts[i], direction, bound, budget / 16, work_left, best[i]);
    if (best[i].peak > bound) optimum.states += search_exactly(parts[i], bound, work_left, best[i]);
    optimum.bound = std::max(optimum.bound, bound);
  }
  for (size_t i = 0; i < parts.size(); i++) {
    optimum.peak = std::max(optimum.peak, best[i].peak);
    for (const int32_t v : best[i].order) optimum.order.push_back(parts[i].layers[v]);
  }
  return optimum;
}

}  // namespace hexane::sched
