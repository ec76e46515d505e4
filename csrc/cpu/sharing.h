// The sharing of a step among threads, and the scratch of a program's steps, from its kernels alone.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "cpu/kernel.h"

namespace hexane::cpu {

// The part of a step that one run computes: a range of an axis of the first output. in_loop: the step is in a loop, so
// it runs more than once.
struct Part {
  int axis;
  Range range;
  bool in_loop;
};

// Bytes of a step in whole cache lines: once per run, and per thread. shared_cost: nanoseconds of a run that threads
// share; 0 for a run on one thread.
struct StepScratch {
  uint64_t shared;
  uint64_t own;
  int64_t shared_cost;
};

// part: absent where a run computes all of it.
StepScratch step_scratch(const Kernel& kernel, const Call& call, const std::optional<Part>& part, int threads);

// The scratch of the steps of one program, which run one after the other.
uint64_t scratch_bytes(std::span<const StepScratch> steps, int threads);

}  // namespace hexane::cpu
