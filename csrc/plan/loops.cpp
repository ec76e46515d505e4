#include "plan/loops.h"

#include <algorithm>

namespace hexane::plan {
namespace {

class Unroller {
 public:
  // Unrolls the loops of the steps [first, end).
  Unroller(const Plan& plan, size_t first, size_t end) : plan_(plan), first_(first), end_(end) {}

  // Adds the runs of the steps [begin, end); `loop` is the first loop at or after `begin`. Returns the first loop after
  // these steps.
  size_t walk(size_t begin, size_t end, size_t loop) {
    for (size_t step = begin; step < end;) {
      if (loop == plan_.loops.size() || plan_.loops[loop].first_step != step) {
        add(step++);
        continue;
      }
      const PlanLoop& row = plan_.loops[loop];
      size_t next = loop;
      ++depth_;
      for (int64_t trip = 0; trip < row.trips; ++trip) {
        next = walk(step, step + row.num_steps, loop + 1);
        move(row, 1);
      }
      --depth_;
      move(row, -row.trips);
      step += row.num_steps;
      loop = next;
    }
    return loop;
  }

  std::vector<Run> take() {
    std::vector<bool> seen(end_ - first_);
    for (auto run = runs_.rbegin(); run != runs_.rend(); ++run) {
      run->last = !seen[run->step - first_];
      seen[run->step - first_] = true;
    }
    return std::move(runs_);
  }

 private:
  void move(const PlanLoop& row, int64_t times) {
    for (size_t i = 0; i < row.num_steps; ++i) shift(row.first_step + i) += times * plan_.moves[row.moves + i];
  }

  void add(size_t index) {
    if (depth_ == 0) return runs_.push_back({static_cast<uint32_t>(index), false, 0, 0});
    const PlanStep& step = plan_.steps[index];
    const PlanTensor& out = plan_.tensors[plan_.operands[step.operands + step.num_inputs]];
    const int64_t extent = out.shape[step.cut_axis];
    const int64_t begin = std::clamp<int64_t>(step.begin + shift(index), 0, extent);
    const int64_t end = std::clamp<int64_t>(step.end + shift(index), 0, extent);
    if (begin < end) runs_.push_back({static_cast<uint32_t>(index), false, begin, end});
  }

  int64_t& shift(size_t step) {
    if (shift_.size() <= step - first_) shift_.resize(step - first_ + 1);
    return shift_[step - first_];
  }

  const Plan& plan_;
  const size_t first_, end_;
  int depth_ = 0;
  std::vector<int64_t> shift_;  // how far each step's range has moved
  std::vector<Run> runs_;
};

void check_step(const Plan& plan, const std::string& where, const PlanStep& step) {
  const PlanTensor& out = plan.tensors[plan.operands[step.operands + step.num_inputs]];
  if (step.cut_axis < 0 || step.cut_axis >= out.rank)
    fail(where, "cut: got axis ", step.cut_axis, " in a loop, need one of the ", out.rank, " of its output");
  for (const int64_t at : {step.begin, step.end})
    if (at < -kMostMove || at > kMostMove) fail(where, "cut: got ", at, ", need at most ", kMostMove);
}

}  // namespace

std::vector<Run> unroll(const Plan& plan, size_t first, size_t end) {
  const auto loop = std::find_if(plan.loops.begin(), plan.loops.end(),
                                 [&](const PlanLoop& loop) { return loop.first_step >= first; });
  Unroller unroller(plan, first, end);
  unroller.walk(first, end, static_cast<size_t>(loop - plan.loops.begin()));
  return unroller.take();
}

void check_loops(const Plan& plan) {
  struct Open {
    uint64_t end, runs;
  };
  std::vector<Open> open;
  uint64_t first = 0, runs = 0;
  for (size_t row = 0; row < plan.loops.size(); ++row) {
    const PlanLoop& loop = plan.loops[row];
    const std::string where = "plan: loops[" + std::to_string(row) + "]";
    const uint64_t end = uint64_t{loop.first_step} + loop.num_steps;
    if (loop.num_steps == 0 || end > plan.steps.size())
      fail(where, "steps: got [", loop.first_step, ", ", end, "), need some of ", plan.steps.size());
    if (loop.first_step < first) fail(where, "first_step: got ", loop.first_step, ", need at least ", first);
    first = loop.first_step;
    while (!open.empty() && open.back().end <= loop.first_step) open.pop_back();
    if (!open.empty() && end > open.back().end)
      fail(where, "steps: got the end ", end, ", need at most ", open.back().end, ", that of the loop around it");
    if (open.size() == kMostDepth) fail(where, "got a loop in ", kMostDepth, " others, need fewer");
    const uint64_t around = open.empty() ? 1 : open.back().runs;
    if (loop.trips < 1 || static_cast<uint64_t>(loop.trips) > kMostRuns / around)
      fail(where, "trips: got ", loop.trips, ", need 1 to ", kMostRuns / around);
    open.push_back({end, around * static_cast<uint64_t>(loop.trips)});
    if (loop.num_steps > (kMostRuns - runs) / open.back().runs)
      fail(where, "got more than ", kMostRuns, " runs of steps in loops");
    runs += loop.num_steps * open.back().runs;
    check_range(where, "moves", loop.moves, loop.num_steps, plan.moves.size());
    for (const int64_t move : plan.moves.subspan(loop.moves, loop.num_steps))
      if (move < -kMostMove / loop.trips || move > kMostMove / loop.trips)
        fail(where, "moves: got ", move, ", need at most ", kMostMove, " in all trips");
    for (uint64_t step = loop.first_step; step < end; ++step)
      check_step(plan, "plan: steps[" + std::to_string(step) + "]", plan.steps[step]);
  }
}

std::vector<PlanLoop> outer_loops(const Plan& plan) {
  std::vector<PlanLoop> result;
  for (const PlanLoop& loop : plan.loops)
    if (result.empty() || loop.first_step >= uint64_t{result.back().first_step} + result.back().num_steps)
      result.push_back(loop);
  return result;
}

}  // namespace hexane::plan
