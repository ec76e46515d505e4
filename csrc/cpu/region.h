// Finds the box of an input that a box of the output needs. needed_box() asks a kernel. The other functions compute the
// answers of common kinds of kernels.
#pragma once

#include "cpu/kernel.h"

namespace hexane::cpu {

// Returns the box of the whole tensor; without axes if the tensor is absent.
Box whole(const Tensor& tensor);

// Returns the box of an input that the kernel needs for a box of its outputs. The needed box is empty for an empty box
// of outputs and for an absent input, and the whole input if the kernel has no `needs`.
Box needed_box(const Kernel& kernel, const Call& call, int input, const Box& out);

// ---- for the kernels ----

// Returns the box of a tensor that broadcasts to `out`. The axes of tensor and `out` are aligned at the end.
Box aligned(const Tensor& tensor, const Box& out);

// Returns `out` with the whole extent of one axis. The tensor has the rank of `out`.
Box all_along(const Tensor& tensor, int axis, const Box& out);

// Returns the box of an operand with one element per index of the output's last axis, or one element in total.
Box per_column(const Tensor& tensor, const Box& out);

// Returns the indices of an axis of `extent` that the windows [out.begin, out.end) touch. Window o covers `reach`
// indices from o * stride - before on.
Range reached(Range out, int64_t stride, int64_t before, int64_t reach, int64_t extent);

// Returns the box of an input with the output's shape that is read elementwise.
Box same_box(const Call& call, int input, const Box& out);

}  // namespace hexane::cpu
