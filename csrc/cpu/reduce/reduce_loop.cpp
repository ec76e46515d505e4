// Sorts the axes of a reduction into kept and reduced.
#include <algorithm>

#include "cpu/operand.h"
#include "cpu/reduce/reduce.h"
#include "cpu/region.h"

namespace hexane::cpu {
namespace {

// Returns a mask with a bit for each reduced axis.
unsigned reduced_axes(const IntList& axes, int rank) {
  unsigned bits = axes.count ? 0 : 0xff;
  for (int64_t i = 0; i < axes.count; ++i) bits |= 1u << (axes.values[i] < 0 ? axes.values[i] + rank : axes.values[i]);
  return bits;
}

}  // namespace

void check_reduce(const char* kernel, const Call& call, const IntList& axes, bool keep_dims) {
  if (call.inputs.size() != 1 || call.outputs.size() != 1)
    fail(kernel, "operands: got ", call.inputs.size(), " inputs and ", call.outputs.size(), " outputs, need 1 and 1");
  const Tensor &in = call.inputs[0], &out = call.outputs[0];
  check_operand(kernel, "input", in);
  check_written(kernel, "output", out);
  check_list(kernel, "axes", axes);
  for (int64_t i = 0; i < axes.count; ++i) check_axis(kernel, axes.values[i], in.rank);
  const unsigned reduced = reduced_axes(axes, in.rank);
  int64_t need[8];
  int rank = 0;
  for (int i = 0; i < in.rank; ++i)
    if (keep_dims || !(reduced >> i & 1)) need[rank++] = reduced >> i & 1 ? 1 : in.shape[i];
  if (!std::equal(need, need + rank, out.shape, out.shape + out.rank))
    fail(kernel, "output shape: got ", shape_text(out), ", need that of ", shape_text(in), " without the reduced axes");
}

ReduceLoop make_reduce_loop(const Call& call, const IntList& axes, bool keep_dims, int axis, Range range) {
  const Tensor &in = call.inputs[0], &out = call.outputs[0];
  const unsigned reduced = reduced_axes(axes, in.rank);
  ReduceLoop loop{};
  loop.count = 1;
  bool last_reduced = false;
  int own = 0;  // axis of the output
  for (int i = 0; i < in.rank; ++i) {
    const bool is_reduced = reduced >> i & 1;
    const bool in_output = keep_dims || !is_reduced;
    ReduceLoop::Axis next{in.shape[i], in.strides[i], is_reduced || !in_output ? 0 : out.strides[own]};
    if (in_output && own == axis && !is_reduced) {
      loop.in += range.begin * next.in;
      loop.out += range.begin * next.out;
      next.extent = range.end - range.begin;
    }
    own += in_output;
    if (is_reduced) loop.count *= next.extent;
    if (in.shape[i] == 1) continue;  // next.extent depends on the piece, but all pieces must merge the same axes
    ReduceLoop::Axis* list = is_reduced ? loop.reduced : loop.kept;
    int& count = is_reduced ? loop.num_reduced : loop.num_kept;
    ReduceLoop::Axis* last = count ? &list[count - 1] : nullptr;
    const bool merges =
        last && last_reduced == is_reduced && last->in == next.in * next.extent && last->out == next.out * next.extent;
    if (merges)
      *last = {last->extent * next.extent, next.in, next.out};
    else
      list[count++] = next;
    last_reduced = is_reduced;
  }
  loop.inner_kept = loop.num_kept > 0 && !last_reduced;
  return loop;
}

Box kept_box(const Tensor& in, const IntList& axes, bool keep_dims, const Box& out) {
  const unsigned reduced = reduced_axes(axes, in.rank);
  Box box = whole(in);
  int own = 0;  // axis of the output
  for (int i = 0; i < in.rank; ++i) {
    if (!(reduced >> i & 1)) box[i] = out[own];
    own += keep_dims || !(reduced >> i & 1);
  }
  return box;
}

Box reduce_needs(const Call& call, int, const Box& out) {
  const auto& attributes = call.attributes<ReduceAttributes>();
  return kept_box(call.inputs[0], attributes.axes, attributes.keep_dims, out);
}

bool first_index(const ReduceLoop::Axis* axes, int num_axes, int64_t* index) {
  std::fill(index, index + num_axes, 0);
  return std::all_of(axes, axes + num_axes, [](const ReduceLoop::Axis& axis) { return axis.extent > 0; });
}

bool next_index(const ReduceLoop::Axis* axes, int num_axes, int64_t* index, int64_t& in, int64_t& out) {
  for (int i = num_axes - 1; i >= 0; --i) {
    const ReduceLoop::Axis& axis = axes[i];
    const bool carry = ++index[i] == axis.extent;
    in += axis.in * (carry ? 1 - axis.extent : 1);
    out += axis.out * (carry ? 1 - axis.extent : 1);
    if (!carry) return true;
    index[i] = 0;
  }
  return false;
}

}  // namespace hexane::cpu
