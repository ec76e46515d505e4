// Predicts from kernels, without a program, whether threads share a step and how much scratch the steps of a program
// need.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "cpu/kernel.h"

namespace hexane::cpu {

// The part of a step that one run computes: a range of an axis of the first output. in_loop: the step is in a loop.
struct Part {
  int axis;
  Range range;
  bool in_loop;
};

// Scratch of a step in bytes, whole cache lines: `shared` for each run, `own` for each thread. shared_cost: nanoseconds
// of a run if threads share it, else 0.
struct StepScratch {
  uint64_t shared;
  uint64_t own;
  int64_t shared_cost;
};

// Returns the scratch of a step. part: absent if a run computes the whole step.
StepScratch step_scratch(const Kernel& kernel, const Call& call, const std::optional<Part>& part, int threads);

// Returns the scratch for all steps of a program, which run one after the other.
uint64_t scratch_bytes(std::span<const StepScratch> steps, int threads);

}  // namespace hexane::cpu
