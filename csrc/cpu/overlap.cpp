// Resolves steps of devices other than the CPU, and decides which CPU steps run at the same time as a device step.
#include <functional>

#include "cpu/resolved_steps.h"

namespace hexane::cpu {
namespace {

constexpr int64_t kElsewhereCost = 200'000;  // ns; the assumed time of a device call

// The kernel of a step of another device. The step's state, prepared by an executor, is the function that runs the step
// on the device.
using RunElsewhere = std::function<void()>;
constexpr Kernel kElsewhere = {
    .name = "program",
    .dtypes = "*...->*...",
    .family = "any",
    .accepts = "strided",
    .run = [](const Call& call, int, Range, std::byte*, const std::byte*) { call.state<RunElsewhere>()(); },
};

}  // namespace

void ResolvedSteps::resolve_elsewhere() {
  for (Step& step : steps_) {
    if (plan_.string(step.row->device) == "cpu") continue;
    step.kernel = &kElsewhere;
    step.elsewhere = true;
    step.cost = kElsewhereCost;
  }
}

// Finds where the CPU waits for each device step: at the next device step, or at the first later step that reads or
// writes the device step's results or overwrites its operands.
void ResolvedSteps::find_what_runs_beside() {
  if (!plan_.loops.empty()) return;
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (!steps_[i].elsewhere) continue;
    size_t end = i + 1;
    while (end < steps_.size() && !steps_[end].elsewhere && !conflict(*steps_[i].row, *steps_[end].row)) ++end;
    steps_[i].waited = end;
    if (end == i + 1) continue;
    if (end < steps_.size()) steps_[end].waits = true;
    overlaps_ = true;
  }
}

bool ResolvedSteps::conflict(const PlanStep& elsewhere, const PlanStep& here) const {
  const auto any = [&](const PlanStep& step, bool outputs, const auto& holds) {
    for (uint32_t i = outputs ? step.num_inputs : 0; i < step.num_inputs + (outputs ? step.num_outputs : 0); ++i) {
      const uint32_t id = plan_.operands[step.operands + i];
      if (id != PLAN_ABSENT && holds(plan_.tensors[id].space)) return true;
    }
    return false;
  };
  const auto touches = [&](const PlanStep& step, bool outputs, uint32_t space) {
    return any(step, outputs, [&](uint32_t other) { return other == space; });
  };
  return any(elsewhere, true,
             [&](uint32_t space) { return touches(here, false, space) || touches(here, true, space); }) ||
         any(elsewhere, false, [&](uint32_t space) { return touches(here, true, space); });
}

}  // namespace hexane::cpu
