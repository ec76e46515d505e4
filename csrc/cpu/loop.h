// Operands walked together: up to four, broadcast against the output, their axes merged as far as the strides allow.
#pragma once

#include "cpu/kernel.h"

namespace hexane::cpu {

struct Loop {
  static constexpr int kMaxOperands = 4;
  int num_operands;  // the inputs, then the output
  int rank;          // at least 1; an axis of extent 1 only where there is a single element
  int64_t shape[8];
  int64_t strides[kMaxOperands][8];  // bytes, 0 where broadcast; the innermost of one element is its size
  int64_t offsets[kMaxOperands];     // bytes to the first element
  int64_t innermost(int operand) const { return strides[operand][rank - 1]; }
};

// Throws Error unless each of the num_inputs inputs broadcasts to the one output and all are sound (see operand.h).
void check_broadcast(const char* kernel, const Call& call, size_t num_inputs, size_t num_used);

// The elements of the output in `range` of `axis`, all of them for axis -1, and the first num_used inputs that belong
// to them.
Loop make_loop(const Call& call, size_t num_used, int axis, Range range);

// One innermost row: n elements of each operand at pointers[i], strides[i] bytes apart.
using Row = void (*)(std::byte* const* pointers, const int64_t* strides, int64_t n, const void* state);

void walk(const Loop& loop, const Call& call, Row row, const void* state);

// The box of an input of a broadcasting kernel.
Box broadcast_needs(const Call& call, int input, const Box& out);

}  // namespace hexane::cpu
