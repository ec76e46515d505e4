// Greedy: spills the tensor with the least traffic per byte that its spill removes from overfull steps, until all steps
// fit. Then takes back spills that turn out to be unnecessary, the most expensive first.
#include "alloc/working_set.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "alloc/solve.h"
#include "core/error.h"

namespace hexane::alloc {
namespace {

void validate(const WorkingSet& set) {
  for (size_t id = 0; id < set.tensors.size(); id++) {
    const Resident& tensor = set.tensors[id];
    if (tensor.touches.empty()) fail("working_set", "tensor ", id, ": need a step that touches it");
    for (size_t i = 0; i < tensor.touches.size(); i++)
      if (tensor.touches[i] < 0 || (i && tensor.touches[i] <= tensor.touches[i - 1]))
        fail("working_set", "tensor ", id, ": got touches out of order, need rising steps");
    if (tensor.tile_bytes < 0 || tensor.tile_bytes > tensor.bytes)
      fail("working_set", "tensor ", id, " tile: got ", tensor.tile_bytes, ", need 0..", tensor.bytes);
  }
}

class Placer {
 public:
  explicit Placer(const WorkingSet& set) : set_(set), spilled_(set.tensors.size()) {}

  Placement run() {
    while (!fits()) spill_one();
    std::vector<size_t> back;
    for (size_t id = 0; id < spilled_.size(); id++)
      if (spilled_[id]) back.push_back(id);
    std::stable_sort(back.begin(), back.end(), [&](size_t a, size_t b) { return cost(a) > cost(b); });
    for (const size_t id : back) {
      spilled_[id] = false;
      if (!fits()) spilled_[id] = true;
    }
    fits();
    Placement placement{spilled_, {}, solution_.height, 0};
    size_t next = 0;
    for (size_t id = 0; id < spilled_.size(); id++) {
      const size_t count = spilled_[id] ? set_.tensors[id].touches.size() : 1;
      placement.offsets.emplace_back(solution_.offsets.begin() + next, solution_.offsets.begin() + next + count);
      next += count;
      if (spilled_[id]) placement.traffic += cost(id);
    }
    return placement;
  }

 private:
  int64_t cost(size_t id) const { return spill_cost(set_.tensors[id]); }

  Problem problem() const {
    Problem problem{{}, set_.alignment, {}};
    for (size_t id = 0; id < spilled_.size(); id++) {
      const Resident& tensor = set_.tensors[id];
      if (!spilled_[id]) {
        problem.buffers.push_back({tensor.touches.front(), tensor.touches.back() + 1, tensor.bytes});
        continue;
      }
      for (const int64_t step : tensor.touches) problem.buffers.push_back({step, step + 1, tensor.tile_bytes});
    }
    return problem;
  }

  bool fits() {
    const std::optional<Solution> found = solve_within(problem(), set_.capacity);
    if (found) solution_ = *found;
    return found.has_value();
  }

  // Returns for each step the bytes over the capacity. If all steps fit but the packing does not, the steps with the
  // most bytes count as one byte over.
  std::map<int64_t, int64_t> overfull() const {
    std::map<int64_t, int64_t> change, over;
    for (const Buffer& buffer : problem().buffers) {
      change[buffer.lower] += round_up(buffer.size, set_.alignment);
      change[buffer.upper] -= round_up(buffer.size, set_.alignment);
    }
    int64_t live = 0, most = 0;
    for (const auto& [step, bytes] : change) most = std::max(most, live += bytes);
    const int64_t allowed = std::min(set_.capacity, most - 1);
    for (const auto& [step, bytes] : change) over[step] = std::max<int64_t>(0, (live += bytes) - allowed);
    return over;
  }

  void spill_one() {
    const std::map<int64_t, int64_t> over = overfull();
    size_t best = spilled_.size();
    double best_price = 0;
    for (size_t id = 0; id < spilled_.size(); id++) {
      const Resident& tensor = set_.tensors[id];
      if (spilled_[id] || tensor.fixed || tensor.tile_bytes == tensor.bytes) continue;
      int64_t relief = 0;
      for (auto it = over.lower_bound(tensor.touches.front()); it != over.end() && it->first <= tensor.touches.back();
           ++it) {
        const bool touched = std::binary_search(tensor.touches.begin(), tensor.touches.end(), it->first);
        relief += std::min(it->second, tensor.bytes - (touched ? tensor.tile_bytes : 0));
      }
      if (relief == 0) continue;
      const double price = static_cast<double>(spill_cost(tensor)) / static_cast<double>(relief);
      if (best < spilled_.size() && price >= best_price) continue;
      best = id;
      best_price = price;
    }
    if (best == spilled_.size()) {
      fail("working_set", "capacity: got ", set_.capacity, " bytes, need ", solve(problem()).height,
           " even if all but the fixed tensors are spilled; cut the layers smaller");
    }
    spilled_[best] = true;
  }

  const WorkingSet& set_;
  std::vector<bool> spilled_;
  Solution solution_;
};

}  // namespace

int64_t spill_cost(const Resident& tensor) {
  const auto reads = static_cast<int64_t>(tensor.touches.size()) - 1;  // the first touch produces or loads the tensor
  return tensor.bytes * (reads + (tensor.made && !tensor.stored ? 1 : 0));
}

Placement place(const WorkingSet& set) {
  validate(set);
  return Placer(set).run();
}

}  // namespace hexane::alloc
