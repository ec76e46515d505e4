// A loop over up to four operands, broadcast to the output. Axes are merged as far as the strides allow.
#pragma once

#include "cpu/kernel.h"

namespace hexane::cpu {

struct Loop {
  static constexpr int kMaxOperands = 4;
  int num_operands;  // The operands are the inputs, then the output.
  int rank;          // At least 1; an axis has extent 1 only if the loop has a single element.
  int64_t shape[8];
  int64_t strides[kMaxOperands][8];  // In bytes, 0 where broadcast; never 0 for an innermost axis of one element.
  int64_t offsets[kMaxOperands];     // Bytes to the first element.
  int64_t innermost(int operand) const { return strides[operand][rank - 1]; }
};

// Throws Error unless each of the num_inputs inputs broadcasts to the one output and all pass the checks of operand.h.
void check_broadcast(const char* kernel, const Call& call, size_t num_inputs, size_t num_used);

// Makes a loop over the output's elements in `range` of `axis`, or over all of them if axis is -1. The loop has the
// first num_used inputs.
Loop make_loop(const Call& call, size_t num_used, int axis, Range range);

// Computes one innermost row: n elements of each operand at pointers[i], strides[i] bytes apart.
using Row = void (*)(std::byte* const* pointers, const int64_t* strides, int64_t n, const void* state);

void walk(const Loop& loop, const Call& call, Row row, const void* state);

// Returns the box of an input that a broadcasting kernel needs for a box of its output.
Box broadcast_needs(const Call& call, int input, const Box& out);

}  // namespace hexane::cpu
