// copy and reverse. A copy does a transpose, slice, broadcast or a part of a concatenation.
#include <algorithm>

#include "cpu/move/strided_copy.h"
#include "cpu/operand.h"
#include "cpu/region.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

struct NoAttributes {};

struct ReverseAttributes {
  IntList axes;
};

// The axes of a call's copy, and the plan of the whole copy.
struct CopyState {
  CopyAxis axes[8];
  int64_t first;  // byte offset of the input element for output element 0
  StridedCopy whole;
};

CopyState copy_state(const char* name, const Call& call) {
  const Tensor &in = call.inputs[0], &out = call.outputs[0];
  check_operand(name, "input", in);
  check_written(name, "output", out);
  check_same_shape(name, out, in);
  if (item_bytes(in) != item_bytes(out))
    fail(name, "output dtype: got ", info(out.dtype).name, ", need the size of ", info(in.dtype).name);
  CopyState state{};
  for (int i = 0; i < out.rank; ++i) state.axes[i] = {out.shape[i], in.strides[i], out.strides[i]};
  return state;
}

Prepared finish(CopyState state, const Tensor& out) {
  state.whole = plan_copy(state.axes, out.rank, item_bytes(out));
  return std::make_shared<CopyState>(state);
}

Prepared prepare_copy(const Call& call) { return finish(copy_state("copy", call), call.outputs[0]); }

Prepared prepare_reverse(const Call& call) {
  CopyState state = copy_state("reverse", call);
  const IntList& axes = call.attributes<ReverseAttributes>().axes;
  const Tensor& out = call.outputs[0];
  check_list("reverse", "axes", axes);
  unsigned seen = 0;
  for (int64_t i = 0; i < axes.count; ++i) {
    const int axis = check_axis("reverse", axes.values[i], out.rank);
    if (seen >> axis & 1) fail("reverse", "axes: got axis ", axis, " twice, need each at most once");
    seen |= 1u << axis;
    CopyAxis& a = state.axes[axis];
    if (a.extent > 0) state.first += (a.extent - 1) * a.in;
    a.in = -a.in;
  }
  return finish(state, out);
}

void run_copy_kernel(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const Tensor &in = call.inputs[0], &out = call.outputs[0];
  const auto& state = call.state<CopyState>();
  const std::byte* from = in.data + state.first;
  if (!state.whole.body) return;
  if (axis < 0 || range == Range{0, out.shape[axis]}) return run_copy(state.whole, out.data, from);
  CopyAxis axes[8];
  std::copy(state.axes, state.axes + out.rank, axes);
  axes[axis].extent = range.end - range.begin;
  run_copy(plan_copy(axes, out.rank, item_bytes(out)), out.data + range.begin * axes[axis].out,
           from + range.begin * axes[axis].in);
}

Box needs_reversed(const Call& call, int, const Box& out) {
  const IntList& axes = call.attributes<ReverseAttributes>().axes;
  Box box = out;
  for (int64_t i = 0; i < axes.count; ++i) {
    const int axis = static_cast<int>(axes.values[i] < 0 ? axes.values[i] + out.rank : axes.values[i]);
    const int64_t extent = call.outputs[0].shape[axis];
    box[axis] = {extent - out[axis].end, extent - out[axis].begin};
  }
  return box;
}

int64_t copy_cost(const Call& call) { return 20 + call.outputs[0].size() * item_bytes(call.outputs[0]) / 24; }

constexpr Kernel copy_row(const char* dtypes) {
  return {
      .name = "copy",
      .dtypes = dtypes,
      .family = "any",
      .accepts = "strided",
      .prepare = prepare_copy,
      .cuts = cut_lines,
      .needs = same_box,
      .cost = copy_cost,
      .run = run_copy_kernel,
  };
}
constexpr Kernel reverse_row(const char* dtypes) {
  return {
      .name = "reverse",
      .dtypes = dtypes,
      .family = "any",
      .attrs = "axes:L",
      .attrs_bytes = sizeof(ReverseAttributes),
      .accepts = "strided",
      .prepare = prepare_reverse,
      .cuts = cut_lines,
      .needs = needs_reversed,
      .cost = copy_cost,
      .run = run_copy_kernel,
  };
}

const Kernel kTable[] = {
    copy_row("8b->8b"),    copy_row("16b->16b"),    copy_row("32b->32b"),    copy_row("64b->64b"),
    reverse_row("8b->8b"), reverse_row("16b->16b"), reverse_row("32b->32b"), reverse_row("64b->64b"),
};

}  // namespace

std::span<const Kernel> copy_table() { return kTable; }

}  // namespace hexane::cpu
