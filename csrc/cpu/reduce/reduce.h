// The loops of a reduction: the axes it keeps, with their strides in the output, and the axes it reduces. Axes are
// merged as far as the strides allow.
#pragma once

#include "cpu/kernel.h"

namespace hexane::cpu {

struct ReduceAttributes {
  IntList axes;  // empty: all axes
  int64_t keep_dims;
};

struct ReduceLoop {
  struct Axis {
    int64_t extent;
    int64_t in;   // Input stride in bytes.
    int64_t out;  // Output stride in bytes; 0 for a reduced axis.
  };
  int num_kept, num_reduced;
  Axis kept[8], reduced[8];  // Axes, outermost first.
  bool inner_kept;           // Whether the innermost axis with more than one element is kept.
  int64_t in, out;           // Bytes to the first element of input and output.
  int64_t count;             // Elements reduced to one result.
};

// Throws Error unless attributes and shapes fit.
void check_reduce(const char* kernel, const Call& call, const IntList& axes, bool keep_dims);

// Makes the loops for the results in `range` of output axis `axis`, or for all results if axis is -1.
ReduceLoop make_reduce_loop(const Call& call, const IntList& axes, bool keep_dims, int axis, Range range);

// Calls f(in, out) with the byte offsets of every combination of indices of the axes.
template <class F>
void for_each(const ReduceLoop::Axis* axes, int num_axes, int64_t in, int64_t out, const F& f) {
  if (num_axes == 0) return f(in, out);
  for (int64_t i = 0; i < axes->extent; ++i)
    for_each(axes + 1, num_axes - 1, in + i * axes->in, out + i * axes->out, f);
}

Box reduce_needs(const Call& call, int input, const Box& out);
Box kept_box(const Tensor& in, const IntList& axes, bool keep_dims, const Box& out);

template <int kPicoseconds>  // picoseconds for each element of the input
int64_t reduce_cost(const Call& call) {
  return 20 + call.inputs[0].size() * kPicoseconds / 1000;
}

}  // namespace hexane::cpu
