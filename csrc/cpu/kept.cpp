// Finds results that are kept from run to run. A step that reads only states and weights, such as a cast of weights for
// a device's program, runs again only after one of its operands has changed. Weights are thus cast once per update, not
// once per batch. Each executor knows which results in its memory are up to date.
#include <algorithm>

#include "cpu/resolved_steps.h"

namespace hexane::cpu {
namespace {

// A tensor's bytes in its space, and the step that writes them.
struct Part {
  uint32_t space;
  uint64_t begin, end;
  size_t step;
};

bool overlap(const Part& a, const Part& b) { return a.space == b.space && a.begin < b.end && b.begin < a.end; }

}  // namespace

// Keeps results in memory that no other step writes. An operand of a device program has memory of its own, so a cast
// into this memory qualifies.
void ResolvedSteps::find_what_is_kept(std::span<const uint32_t> changing) {
  const auto is_cpu = [&](const Step& step) { return plan_.string(step.row->device) == "cpu"; };
  if (!plan_.loops.empty() || std::all_of(steps_.begin(), steps_.end(), is_cpu)) return;
  const auto parts_of = [&](size_t i, bool outputs) {
    const PlanStep& row = *steps_[i].row;
    std::vector<Part> parts;
    for (const uint32_t id : plan_.operands.subspan(row.operands + (outputs ? row.num_inputs : 0),
                                                    outputs ? row.num_outputs : row.num_inputs)) {
      if (id == PLAN_ABSENT) continue;
      const PlanTensor& tensor = plan_.tensors[id];
      parts.push_back(
          {tensor.space, tensor.offset, tensor.offset + plan::extent_bytes(tensor, plan_.dtype(tensor)), i});
    }
    return parts;
  };
  std::vector<Part> written;
  for (size_t i = 0; i < steps_.size(); ++i) {
    const std::vector<Part> parts = parts_of(i, true);
    written.insert(written.end(), parts.begin(), parts.end());
  }
  const auto kind = [&](const Part& part) { return plan_.string(plan_.spaces[part.space].kind); };
  const auto lasts = [&](const Part& part) {
    return (kind(part) == "state" || kind(part) == "param" || kind(part) == "weights") &&
           std::find(changing.begin(), changing.end(), part.space) == changing.end();
  };
  const auto is_own = [&](const Part& part) {
    return kind(part) == "arena" && std::none_of(written.begin(), written.end(), [&](const Part& other) {
             return other.step != part.step && overlap(other, part);
           });
  };
  for (size_t i = 0; i < steps_.size(); ++i) {
    Step& step = steps_[i];
    if (!is_cpu(step) || step.empty || step.rings) continue;
    const std::vector<Part> read = parts_of(i, false), made = parts_of(i, true);
    if (read.empty() || !std::all_of(read.begin(), read.end(), lasts) || !std::all_of(made.begin(), made.end(), is_own))
      continue;
    step.kept = static_cast<int>(num_kept_++);
    for (const Part& part : written)
      if (std::any_of(read.begin(), read.end(), [&](const Part& operand) { return overlap(operand, part); }))
        steps_[part.step].outdates.push_back(step.kept);
  }
}

}  // namespace hexane::cpu
