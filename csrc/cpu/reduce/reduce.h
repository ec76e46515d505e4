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

// Moves the byte offsets `in` and `out` to the next combination of indices of the axes. Returns false after the last
// one.
bool next_index(const ReduceLoop::Axis* axes, int num_axes, int64_t* index, int64_t& in, int64_t& out);
// Sets the first combination of indices. Returns false if an axis is empty.
bool first_index(const ReduceLoop::Axis* axes, int num_axes, int64_t* index);

// Calls f(in, out) with the byte offsets of every combination of indices of the axes. The code of f exists once: a
// recursive loop would be a copy of f for each level that the compiler unfolds.
template <class F>
void for_each(const ReduceLoop::Axis* axes, int num_axes, int64_t in, int64_t out, const F& f) {
  static constexpr ReduceLoop::Axis kOne{1, 0, 0};
  const ReduceLoop::Axis& inner = num_axes ? axes[num_axes - 1] : kOne;
  int64_t index[8];
  if (num_axes > 1 && !first_index(axes, num_axes - 1, index)) return;
  do {
    for (int64_t i = 0; i < inner.extent; ++i) f(in + i * inner.in, out + i * inner.out);
  } while (num_axes > 1 && next_index(axes, num_axes - 1, index, in, out));
}

Box reduce_needs(const Call& call, int input, const Box& out);
Box kept_box(const Tensor& in, const IntList& axes, bool keep_dims, const Box& out);

template <int kPicoseconds>  // picoseconds for each element of the input
int64_t reduce_cost(const Call& call) {
  return 20 + call.inputs[0].size() * kPicoseconds / 1000;
}

}  // namespace hexane::cpu
