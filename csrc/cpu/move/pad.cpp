// Padding and cropping. Each output row is filled with the constant, copied from one input row, or both. Trailing dense
// axes without padding are merged to one unit.
#include <algorithm>
#include <cstring>

#include "cpu/move/strided_copy.h"
#include "cpu/operand.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

struct PadAttributes {
  IntList begin;  // elements added before each axis, negative: removed
  IntList end;
  uint64_t mode;  // "constant" | "reflect" | "edge" | "wrap"
  double value;
};

enum class PadMode { kConstant, kReflect, kEdge, kWrap };

struct PadState {
  PadMode mode;
  int num_axes;    // Number of axes outside of the unit.
  int64_t unit;    // Bytes of a unit.
  uint64_t value;  // An element, repeated to fill the word.
  int64_t item;    // Bytes of one element.
};

// Returns the input index for output index i + begin of an axis of `extent`, or -1 for the constant.
int64_t source(PadMode mode, int64_t i, int64_t extent) {
  if (i >= 0 && i < extent) return i;
  switch (mode) {
    case PadMode::kConstant:
      return -1;
    case PadMode::kEdge:
      return i < 0 ? 0 : extent - 1;
    case PadMode::kWrap:
      return (i % extent + extent) % extent;
    case PadMode::kReflect:
      break;
  }
  if (extent == 1) return 0;
  const int64_t period = 2 * (extent - 1), at = (i % period + period) % period;
  return at < extent ? at : period - at;
}

Prepared prepare_pad(const Call& call) {
  const Tensor &in = call.inputs[0], &out = call.outputs[0];
  const auto& a = call.attributes<PadAttributes>();
  check_operand("pad", "input", in);
  check_written("pad", "output", out);
  if (in.dtype != out.dtype) fail("pad", "output dtype: got ", info(out.dtype).name, ", need ", info(in.dtype).name);
  if (out.rank != in.rank) fail("pad", "output rank: got ", out.rank, ", need ", in.rank);
  for (const IntList* list : {&a.begin, &a.end})
    if (list->count != in.rank) fail("pad", "begin or end: got ", list->count, " numbers, need ", in.rank);
  const std::string_view mode = call.string(a.mode);
  PadState state{PadMode::kConstant, out.rank, item_bytes(out), 0, item_bytes(out)};
  if (mode == "reflect")
    state.mode = PadMode::kReflect;
  else if (mode == "edge")
    state.mode = PadMode::kEdge;
  else if (mode == "wrap")
    state.mode = PadMode::kWrap;
  else if (mode != "constant")
    fail("pad", "mode: got '", mode, "', need constant, reflect, edge or wrap");
  for (int i = 0; i < out.rank; ++i) {
    const int64_t begin = a.begin.values[i], end = a.end.values[i];
    int64_t extent;
    if (__builtin_add_overflow(in.shape[i], begin, &extent) || __builtin_add_overflow(extent, end, &extent) ||
        extent != out.shape[i])
      fail("pad", "axis ", i, " of the output: got ", out.shape[i], ", need ", in.shape[i], " + ", begin, " + ", end);
    if (state.mode != PadMode::kConstant && in.shape[i] == 0 && out.shape[i] > 0)
      fail("pad", "axis ", i, ": got no elements, need one or more to pad by ", mode);
  }
  if (state.mode == PadMode::kConstant) {
    state.value = scalar_bits("pad", out.dtype, a.value);
    if (state.item < 8) state.value &= (uint64_t{1} << 8 * state.item) - 1;
    for (int64_t bytes = state.item; bytes < 8; bytes *= 2) state.value |= state.value << 8 * bytes;
  }
  for (int i = out.rank - 1; i >= 0; --i) {
    if (a.begin.values[i] || a.end.values[i] || in.strides[i] != state.unit || out.strides[i] != state.unit) break;
    state.unit *= in.shape[i];
    state.num_axes = i;
  }
  return std::make_shared<PadState>(state);
}

void fill(std::byte* out, uint64_t value, int64_t bytes) {
  for (; bytes >= 8; bytes -= 8, out += 8) std::memcpy(out, &value, 8);
  std::memcpy(out, &value, static_cast<size_t>(bytes));
}

// Computes units [range.begin, range.end) of one output row. `in`: the input row of this output row, or null if the
// whole row is the constant.
void pad_row(const PadState& state, std::byte* out, const std::byte* in, Range range, int64_t begin, int64_t extent,
             int64_t out_stride, int64_t in_stride) {
  const auto outside = [&](Range part) {
    for (int64_t o = part.begin; o < part.end; ++o) {
      const int64_t i = in ? source(state.mode, o - begin, extent) : -1;
      if (i < 0)
        fill(out + o * out_stride, state.value, state.unit);
      else
        copy_run(out + o * out_stride, in + i * in_stride, state.unit);
    }
  };
  const auto constant = [&](Range part) {
    if (part.begin < part.end) fill(out + part.begin * out_stride, state.value, (part.end - part.begin) * state.unit);
  };
  const bool dense = out_stride == state.unit, fills = dense && (!in || state.mode == PadMode::kConstant);
  const int64_t first = in ? std::clamp(begin, range.begin, range.end) : range.end;
  const int64_t last = in ? std::clamp(begin + extent, first, range.end) : range.end;
  fills ? constant({range.begin, first}) : outside({range.begin, first});
  if (dense && in_stride == state.unit) {
    if (first < last) copy_run(out + first * out_stride, in + (first - begin) * in_stride, (last - first) * state.unit);
  } else {
    outside({first, last});
  }
  fills ? constant({last, range.end}) : outside({last, range.end});
}

void run_pad(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const Tensor &in = call.inputs[0], &out = call.outputs[0];
  const auto& a = call.attributes<PadAttributes>();
  const auto& state = call.state<PadState>();
  if (out.size() == 0) return;
  if (state.num_axes == 0) return copy_run(out.data, in.data, state.unit);
  const int inner = state.num_axes - 1;
  const auto part = [&](int i) { return i == axis ? range : Range{0, out.shape[i]}; };
  int64_t index[8];
  for (int i = 0; i < inner; ++i) index[i] = part(i).begin;
  for (;;) {
    std::byte* to = out.data;
    const std::byte* from = in.data;
    for (int i = 0; i < inner; ++i) {
      to += index[i] * out.strides[i];
      const int64_t at = source(state.mode, index[i] - a.begin.values[i], in.shape[i]);
      from = at < 0 || !from ? nullptr : from + at * in.strides[i];
    }
    pad_row(state, to, from, part(inner), a.begin.values[inner], in.shape[inner], out.strides[inner],
            in.strides[inner]);
    int i = inner - 1;
    for (; i >= 0 && ++index[i] == part(i).end; --i) index[i] = part(i).begin;
    if (i < 0) return;
  }
}

void pad_cuts(const Call& call, Cuts& cuts) {
  const Tensor& out = call.outputs[0];
  const int walked = call.state<PadState>().num_axes;
  for (int i = 0; i < walked; ++i)
    if (out.shape[i] > 1) cuts.add(i, out.shape[i], i == walked - 1 ? 64 / item_bytes(out) : 1);
}

Box pad_needs(const Call& call, int, const Box& out) {
  const auto& a = call.attributes<PadAttributes>();
  const PadMode mode = call.state<PadState>().mode;
  Box box = out;
  for (int axis = 0; axis < out.rank; ++axis) {
    const int64_t extent = call.inputs[0].shape[axis], begin = a.begin.values[axis];
    Range range{extent, 0};
    const auto show = [&](int64_t from, int64_t to) {
      if (from < to) range = {std::min(range.begin, from), std::max(range.end, to)};
    };
    const int64_t first = out[axis].begin - begin, last = out[axis].end - begin;
    show(std::max<int64_t>(first, 0), std::min(last, extent));
    for (int64_t i = first; mode != PadMode::kConstant && i < last; ++i) {
      if (i >= 0 && i < extent) i = std::min(last, extent);  // outputs inside the input read their own index
      if (i < last) show(source(mode, i, extent), source(mode, i, extent) + 1);
    }
    box[axis] = range.begin < range.end ? range : Range{0, 0};
  }
  return box;
}

int64_t pad_cost(const Call& call) { return 50 + call.outputs[0].size() * item_bytes(call.outputs[0]) / 8; }

constexpr Kernel pad(const char* dtypes) {
  return {
      .name = "pad",
      .dtypes = dtypes,
      .family = "any",
      .attrs = "begin:L end:L mode:s value:f",
      .attrs_bytes = sizeof(PadAttributes),
      .accepts = "strided",
      .prepare = prepare_pad,
      .cuts = pad_cuts,
      .needs = pad_needs,
      .cost = pad_cost,
      .run = run_pad,
  };
}

constexpr Kernel kTable[] = {pad("8b->8b"), pad("16b->16b"), pad("32b->32b"), pad("64b->64b")};

}  // namespace

std::span<const Kernel> pad_table() { return kTable; }

}  // namespace hexane::cpu
