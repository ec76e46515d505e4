// Steps of other devices, and the run in which the CPU's steps overlap with them.
#include <utility>

#include "cpu/executor.h"

namespace hexane::cpu {
namespace {

constexpr int64_t kElsewhereCost = 200'000;  // ns; calls of other devices take about as long

// What a step of another device has as its kernel. What is prepared is the function that runs it.
using RunElsewhere = std::function<void()>;
constexpr Kernel kElsewhere = {
    .name = "program",
    .dtypes = "*...->*...",
    .family = "any",
    .accepts = "strided",
    .run = [](const Call& call, int, Range, std::byte*, const std::byte*) { call.state<RunElsewhere>()(); },
};

}  // namespace

void Executor::resolve_elsewhere(const Elsewhere& elsewhere) {
  for (Step& step : steps_) {
    if (plan_.string(step.row->device) == "cpu") continue;
    step.kernel = &kElsewhere;
    step.prepared = std::make_shared<const RunElsewhere>(elsewhere(static_cast<size_t>(&step - steps_.data())));
    step.call.prepared = step.prepared.get();
    step.cost = kElsewhereCost;
  }
}

// A step of another device is waited for by the first later one that touches what it writes, or writes what it reads,
// and by the next step of a device.
void Executor::find_what_runs_beside() {
  if (!plan_.loops.empty()) return;
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (steps_[i].kernel != &kElsewhere) continue;
    size_t end = i + 1;
    while (end < steps_.size() && steps_[end].kernel != &kElsewhere && !conflict(*steps_[i].row, *steps_[end].row))
      ++end;
    steps_[i].waited = end;
    if (end == i + 1) continue;
    if (end < steps_.size()) steps_[end].waits = true;
    if (!lane_) lane_ = std::make_unique<Lane>();
  }
}

bool Executor::conflict(const PlanStep& elsewhere, const PlanStep& here) const {
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

void Executor::run_beside() {
  const auto lease = any_parallel_ ? ThreadPool::of_process().try_lease(threads_) : ThreadPool::Lease();
  size_t started = 0;
  bool running = false;
  const auto wait = [&] {
    if (!std::exchange(running, false)) return;
    lane_->wait();
    if (profiling_) record(started, lane_->last().begin, lane_->last().end);
  };
  const auto run_one = [&](const Step& step) {
    try {
      run_step(step, step.range, lease);
    } catch (const Error& error) {
      rethrow(error, step);
    }
  };
  timeline_.clear();
  try {
    for (size_t i = 0; i < steps_.size(); ++i) {
      const Step& step = steps_[i];
      if (step.waits || step.kernel == &kElsewhere) wait();
      if (step.waited > i + 1) {
        outdate_by(step);
        lane_->start(step.call.state<RunElsewhere>());
        started = i;
        running = true;
        continue;
      }
      const int64_t begin = profiling_ ? now() : 0;
      run_one(step);
      if (profiling_) record(i, begin, now());
    }
    wait();
  } catch (...) {
    if (running) try {
        lane_->wait();
      } catch (...) {  // the first error is the one that is told
      }
    throw;
  }
}

}  // namespace hexane::cpu
