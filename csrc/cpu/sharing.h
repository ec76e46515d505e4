// How threads share a step, and the scratch that a program's steps need: what its kernels say, without a program.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "cpu/kernel.h"

namespace hexane::cpu {

// The part of a step that one run computes: an axis of the first output, and a range of it. in_loop: the step is in a
// loop, so it runs more than once.
struct Part {
  int axis;
  Range range;
  bool in_loop;
};

// Bytes of a step in whole cache lines: once for a run, and of each thread. shared_cost: nanoseconds of a run that
// threads share; 0 for one that one thread computes.
struct StepScratch {
  uint64_t shared;
  uint64_t own;
  int64_t shared_cost;
};

// part: absent where a run computes all of it.
StepScratch step_scratch(const Kernel& kernel, const Call& call, const std::optional<Part>& part, int threads);

// What the steps of one program need, which run one after the other.
uint64_t scratch_bytes(std::span<const StepScratch> steps, int threads);

}  // namespace hexane::cpu
