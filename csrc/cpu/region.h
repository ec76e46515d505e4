// The box of an input that a box of the output needs: the query to a kernel, and answers that kernels share.
#pragma once

#include "cpu/kernel.h"

namespace hexane::cpu {

// All of the tensor; no axes if it is absent.
Box whole(const Tensor& tensor);

// The box of an input that the kernel needs for a box of its outputs. It is empty for an empty box and for an absent
// input, and the whole input where the kernel has no `needs`.
Box needed_box(const Kernel& kernel, const Call& call, int input, const Box& out);

// For the kernels.

// The box of a tensor that broadcasts to `out`, with their axes aligned at the end.
Box aligned(const Tensor& tensor, const Box& out);

// `out` with all of one axis of a tensor of the same rank.
Box all_along(const Tensor& tensor, int axis, const Box& out);

// The box of an operand with one element for each index of the output's last axis, or one for all.
Box per_column(const Tensor& tensor, const Box& out);

// The indices of an axis of `extent` that the windows [out.begin, out.end) touch. Window o covers `reach` indices, the
// first at o * stride - before.
Range reached(Range out, int64_t stride, int64_t before, int64_t reach, int64_t extent);

// The box of an input that has the output's shape and is read element by element.
Box same_box(const Call& call, int input, const Box& out);

}  // namespace hexane::cpu
