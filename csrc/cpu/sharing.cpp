#include "cpu/sharing.h"

#include <algorithm>

namespace hexane::cpu {
namespace {

// These constants have the same values in cpu/resolved_steps.cpp. tests/planning/test_scratch.py compares the results
// of both files.
constexpr int64_t kParallelCost = 5000;  // Nanoseconds; waking threads for less work costs more than they save.
constexpr int64_t kParallelRun = 25000;  // Nanoseconds; less work ends before a sleeping thread has woken up.
constexpr int64_t kMostCost = int64_t{1} << 50;
constexpr uint64_t kLine = 64;

// Returns the cost of a kernel without cost(): the time to move its operands' bytes at about the speed of memory.
int64_t moving_cost(const Call& call) {
  int64_t bytes = 0;
  for (const auto side : {call.inputs, call.outputs})
    for (const Tensor& tensor : side)
      if (tensor.present()) bytes += tensor.size() * ((info(tensor.dtype).bits + 7) / 8);
  return bytes / 8;
}

uint64_t in_lines(const Kernel& kernel, int64_t bytes) {
  if (bytes < 0 || bytes > static_cast<int64_t>(kMaxBytes))
    fail(kernel.name, "scratch: got ", bytes, " bytes, need at most ", kMaxBytes);
  return (static_cast<uint64_t>(bytes) + kLine - 1) / kLine * kLine;
}

int64_t grains(const Cut& cut) { return (cut.extent + cut.grain - 1) / cut.grain; }

// Returns the axis along which threads divide a whole step: the first with a piece for each thread, or else the axis
// with the most pieces.
const Cut& best_cut(const Cuts& cuts, int threads) {
  const Cut* best = &cuts.items[0];
  for (int i = 0; i < cuts.count && grains(*best) < threads; ++i)
    if (grains(cuts.items[i]) > grains(*best)) best = &cuts.items[i];
  return *best;
}

int64_t shared_cost(const Kernel& kernel, const Call& call, const std::optional<Part>& part, int threads) {
  const auto is_empty = [](const Tensor& tensor) { return tensor.size() == 0; };
  if (threads == 1 || kernel.in_order || !kernel.cuts) return 0;
  if (std::all_of(call.outputs.begin(), call.outputs.end(), is_empty)) return 0;
  Cuts cuts;
  kernel.cuts(call, cuts);
  if (cuts.count == 0) return 0;
  const int64_t whole = std::clamp<int64_t>((kernel.cost ? kernel.cost : moving_cost)(call), 0, kMostCost);
  int64_t run = whole;
  Cut chosen = best_cut(cuts, threads);
  if (part) {
    const std::span<const Cut> all(cuts.items, static_cast<size_t>(cuts.count));
    const auto found = std::find_if(all.begin(), all.end(), [&](const Cut& cut) { return cut.axis == part->axis; });
    if (found == all.end()) fail(kernel.name, "cut: got axis ", part->axis, ", need one along which it can be cut");
    const int64_t length = part->range.end - part->range.begin;
    chosen = {found->axis, length, found->grain};
    if (part->in_loop) run = whole / found->extent * std::min(length, found->extent);
  }
  return grains(chosen) < 2 || run < kParallelCost ? 0 : whole;
}

}  // namespace

StepScratch step_scratch(const Kernel& kernel, const Call& call, const std::optional<Part>& part, int threads) {
  return {kernel.shared_scratch ? in_lines(kernel, kernel.shared_scratch(call)) : 0,
          kernel.scratch ? in_lines(kernel, kernel.scratch(call)) : 0, shared_cost(kernel, call, part, threads)};
}

uint64_t scratch_bytes(std::span<const StepScratch> steps, int threads) {
  int64_t cost = 0;
  for (const StepScratch& step : steps) cost = std::min(cost + step.shared_cost, kMostCost);
  uint64_t most = 0;
  for (const StepScratch& step : steps) {
    const bool is_shared = step.shared_cost > 0 && cost >= kParallelRun;
    most = std::max(most, step.shared + (is_shared ? static_cast<uint64_t>(threads) : 1) * step.own);
  }
  return most;
}

}  // namespace hexane::cpu
