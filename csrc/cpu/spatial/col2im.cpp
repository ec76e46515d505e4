// col2im: adds columns (N, C * taps, windows) at their places in an image (N, C, spatial...), one row of the image at a
// time. The values that one tap adds to a row are `stride` elements apart. The elements i with equal i % stride are
// summed in a dense line, and the lines are interleaved at the end. The taps of an element are added in their order. If
// windows tile the image without overlap, they are copied.
#include <algorithm>
#include <type_traits>
#include <vector>

#include "cpu/move/strided_copy.h"
#include "cpu/operand.h"
#include "cpu/spatial/conv.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

struct Col2imAttributes {
  IntList kernel_sizes;  // all lists except `pad` have one number for each spatial axis
  IntList strides;
  IntList dilations;
  IntList pad;  // begin and end of the first spatial axis, of the second, ...
};

constexpr int kMaxAxes = 6;
constexpr int kMostTiled = 3;                        // Most spatial axes that a copy can tile, as each needs two axes.
constexpr int64_t kMostElements = int64_t{1} << 31;  // Longest axis.

// One spatial axis.
struct ColumnAxis {
  int64_t extent, taps, stride, dilation, before;
  int64_t windows;
  int64_t tap_step, window_step;  // strides of x along taps and along windows

  // Returns the position of this tap of window 0 in the image.
  int64_t start(int64_t tap) const { return tap * dilation - before; }

  // Returns the window whose tap `tap` is element i, or -1.
  int64_t window(int64_t i, int64_t tap) const {
    const int64_t at = i - start(tap);
    if (at < 0) return -1;
    const auto place = static_cast<uint32_t>(at), step = static_cast<uint32_t>(stride);
    const int64_t found = place / step;
    return place % step == 0 && found < windows ? found : -1;
  }

  // Returns the range of taps that may lie on element i, from the last window's to the first window's.
  Range reaching(int64_t i) const {
    const int64_t last = i + before, first = last - std::max<int64_t>(windows - 1, 0) * stride;
    return {first <= 0 ? 0 : std::min(taps, (first + dilation - 1) / dilation), std::min(taps, last / dilation + 1)};
  }

  // Returns the windows whose tap `tap` lies in the image.
  Range inside(int64_t tap) const {
    const auto before_place = [&](int64_t place) {
      return std::clamp<int64_t>((place - start(tap) + stride - 1) / stride, 0, windows);
    };
    const int64_t first = start(tap) >= 0 ? 0 : before_place(0);
    return {first, start(tap) >= extent ? first : std::max(first, before_place(extent))};
  }
};

// The values that one tap of the last axis adds to a row: a run of columns of x and its place in a line of sums.
struct Run {
  int64_t tap, first, count, place;
};

struct Col2imState {
  int num_axes;
  ColumnAxis axes[kMaxAxes];
  int64_t taps;
  int64_t lines, length;  // lines of sums and their length: element i of a row is in line i % stride
  std::vector<Run> runs;
  bool tiled;  // each element of the image has exactly one window and tap, in order
};

// Plans the copy of tiled windows: channels [range.begin, range.end) for axis 1, images for axis 0, or everything. Each
// axis of the image is split into windows and taps.
StridedCopy tiles(const Call& call, const Col2imState& state, int axis, Range range) {
  const Tensor &x = call.inputs[0], &out = call.outputs[0];
  const auto extent = [&](int i) { return i == axis ? range.end - range.begin : out.shape[i]; };
  CopyAxis axes[2 + 2 * kMostTiled] = {{extent(0), x.strides[0], out.strides[0]},
                                       {extent(1), x.strides[1] * state.taps, out.strides[1]}};
  int count = 2;
  for (int i = 0; i < state.num_axes; ++i) {
    const ColumnAxis& a = state.axes[i];
    const int64_t step = out.strides[2 + i];
    axes[count++] = {a.taps, a.tap_step * x.strides[1], step};
    axes[count++] = {a.windows, a.window_step * x.strides[2], step * a.stride};
  }
  return plan_copy(axes, count, item_bytes(out));
}

Prepared prepare_col2im(const Call& call) {
  const Tensor &x = call.inputs[0], &out = call.outputs[0];
  const auto& a = call.attributes<Col2imAttributes>();
  check_operand("col2im", "input", x);
  check_written("col2im", "output", out);
  if (x.rank != 3 || out.rank < 3) fail("col2im", "ranks: got ", x.rank, " and ", out.rank, ", need 3 and 3 to 8");
  Col2imState state{out.rank - 2, {}, 1, 0, 0, {}, out.rank - 2 <= kMostTiled};
  const auto attribute = [&](const IntList& list, int64_t i, int64_t least, const char* what) {
    return window_attribute("col2im", list, i, &list == &a.pad ? 2 * state.num_axes : state.num_axes, least, what);
  };
  int64_t windows = 1, rows;
  for (int i = state.num_axes - 1; i >= 0; --i) {
    ColumnAxis& axis = state.axes[i];
    axis = {out.shape[i + 2],
            attribute(a.kernel_sizes, i, 1, "kernel_sizes"),
            attribute(a.strides, i, 1, "strides"),
            attribute(a.dilations, i, 1, "dilations"),
            attribute(a.pad, 2 * i, 0, "pad"),
            0,
            state.taps,
            windows};
    if (axis.extent >= kMostElements)
      fail("col2im", "axis ", i + 2, ": got ", axis.extent, " elements, need less than ", kMostElements);
    const int64_t room =
        axis.extent + axis.before + attribute(a.pad, 2 * i + 1, 0, "pad") - (axis.taps - 1) * axis.dilation - 1;
    if (room < 0) fail("col2im", "axis ", i + 2, ": got ", axis.extent, " elements, need room for one window");
    axis.windows = room / axis.stride + 1;
    state.tiled &=
        axis.extent == axis.windows * axis.taps && axis.taps == axis.stride && axis.dilation == 1 && !axis.before;
    if (__builtin_mul_overflow(windows, axis.windows, &windows) ||
        __builtin_mul_overflow(state.taps, axis.taps, &state.taps))
      fail("col2im", "windows: got more than can be counted");
  }
  if (__builtin_mul_overflow(out.shape[1], state.taps, &rows) || x.shape[0] != out.shape[0] || x.shape[1] != rows ||
      x.shape[2] != windows)
    fail("col2im", "input: got ", shape_text(x), " for ", shape_text(out), ", need batch, channels * ", state.taps,
         " and ", windows);
  const ColumnAxis& last = state.axes[state.num_axes - 1];
  state.lines = std::min(last.stride, last.extent);
  state.length = (last.extent + last.stride - 1) / last.stride;
  for (int64_t tap = 0; tap < last.taps; ++tap) {
    const Range inside = last.inside(tap);
    const int64_t place = last.start(tap) + inside.begin * last.stride;
    if (inside.begin < inside.end)
      state.runs.push_back(
          {tap, inside.begin, inside.end - inside.begin, place % last.stride * state.length + place / last.stride});
  }
  return std::make_shared<Col2imState>(std::move(state));
}

template <typename T>
void add_run(T* sums, const std::byte* x, int64_t step, int64_t n) {
  using U =
      typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;  // wraps
  const auto loop = [=](int64_t from) __attribute__((always_inline)) {
    for (int64_t i = 0; i < n; ++i)
      sums[i] = static_cast<T>(static_cast<U>(sums[i]) + static_cast<U>(*reinterpret_cast<const T*>(x + i * from)));
  };
  step == sizeof(T) ? loop(sizeof(T)) : loop(step);
}

// Stores a row of the image from its lines of sums.
template <typename T>
void store(const Col2imState& state, const T* sums, std::byte* to, int64_t step) {
  const ColumnAxis& axis = state.axes[state.num_axes - 1];
  const auto loop = [&](int64_t stride, int64_t out) __attribute__((always_inline)) {
    const int64_t whole = axis.extent / stride;
    const auto element = [&](int64_t i, int64_t line) __attribute__((always_inline)) {
      *reinterpret_cast<T*>(to + (i * stride + line) * out) = sums[line * state.length + i];
    };
    for (int64_t i = 0; i < whole; ++i)
      for (int64_t line = 0; line < stride; ++line) element(i, line);
    for (int64_t line = 0; line < axis.extent - whole * stride; ++line) element(whole, line);
  };
  const bool dense = step == sizeof(T);
  if (dense && axis.stride == 1)
    loop(1, sizeof(T));
  else if (dense && axis.stride == 2)
    loop(2, sizeof(T));
  else
    loop(axis.stride, step);
}

// Adds the taps of the axes from `axis` on to the row at `place`. `from` already points to the tap and window of the
// earlier axes.
template <typename T>
void add_taps(const Col2imState& state, int axis, const int64_t* place, const Tensor& x, const std::byte* from,
              T* sums) {
  const int64_t row = x.strides[1], column = x.strides[2];
  if (axis == state.num_axes - 1) {
    for (const Run& run : state.runs)
      add_run(sums + run.place, from + run.tap * row + run.first * column, column, run.count);
    return;
  }
  const ColumnAxis& a = state.axes[axis];
  const Range reached = a.reaching(place[axis]);
  for (int64_t tap = reached.begin; tap < reached.end; ++tap)
    if (const int64_t window = a.window(place[axis], tap); window >= 0)
      add_taps(state, axis + 1, place, x, from + tap * a.tap_step * row + window * a.window_step * column, sums);
}

template <typename T>
void run_col2im(const Call& call, int axis, Range range, std::byte* scratch, const std::byte*) {
  const Tensor &x = call.inputs[0], &out = call.outputs[0];
  const auto& state = call.state<Col2imState>();
  if (out.size() == 0) return;
  if (state.tiled)
    return run_copy(tiles(call, state, axis, range), out.data + (axis < 0 ? 0 : range.begin * out.strides[axis]),
                    x.data + (axis < 0 ? 0 : range.begin * x.strides[axis] * (axis ? state.taps : 1)));
  const int last = out.rank - 1;
  T* sums = reinterpret_cast<T*>(scratch);
  const auto part = [&](int i) { return i == axis ? range : Range{0, out.shape[i]}; };
  int64_t at[8];
  for (int i = 0; i < last; ++i) at[i] = part(i).begin;
  for (;;) {
    std::fill_n(sums, state.lines * state.length, T{});
    add_taps(state, 0, at + 2, x, x.data + at[0] * x.strides[0] + at[1] * state.taps * x.strides[1], sums);
    std::byte* to = out.data;
    for (int i = 0; i < last; ++i) to += at[i] * out.strides[i];
    store(state, sums, to, out.strides[last]);
    int i = last - 1;
    for (; i >= 0 && ++at[i] == part(i).end; --i) at[i] = part(i).begin;
    if (i < 0) return;
  }
}

// Lists the cuts: channels, images, and unless windows tile the image, all spatial axes except the last.
void col2im_cuts(const Call& call, Cuts& cuts) {
  const Tensor& out = call.outputs[0];
  for (const int first : {1, 0})
    if (out.shape[first] > 1) cuts.add(first, out.shape[first]);
  if (call.state<Col2imState>().tiled) return;
  for (int i = 2; i < out.rank - 1; ++i)
    if (out.shape[i] > 1) cuts.add(i, out.shape[i]);
}

// Windows with the same index of the first spatial axis are adjacent columns.
Box col2im_needs(const Call& call, int, const Box& out) {
  const auto& state = call.state<Col2imState>();
  const ColumnAxis& a = state.axes[0];
  const int64_t reach = (a.taps - 1) * a.dilation, begin = out[2].begin + a.before - reach;
  const int64_t first = begin <= 0 ? 0 : (begin + a.stride - 1) / a.stride;
  const int64_t last = (out[2].end - 1 + a.before) / a.stride + 1;
  Box box{3, {}};
  box[0] = out[0];
  box[1] = {out[1].begin * state.taps, out[1].end * state.taps};
  box[2] = {std::min(first, a.windows) * a.window_step, std::min(last, a.windows) * a.window_step};
  return box;
}

int64_t col2im_cost(const Call& call) { return 50 + (call.inputs[0].size() + call.outputs[0].size()) / 4; }

int64_t col2im_scratch(const Call& call) {
  const auto& state = call.state<Col2imState>();
  return state.lines * state.length * item_bytes(call.outputs[0]);
}

template <typename T>
constexpr Kernel col2im_kernel(const char* dtypes) {
  return {
      .name = "col2im",
      .dtypes = dtypes,
      .attrs = "kernel_sizes:L strides:L dilations:L pad:L",
      .attrs_bytes = sizeof(Col2imAttributes),
      .accepts = "strided",
      .prepare = prepare_col2im,
      .cuts = col2im_cuts,
      .needs = col2im_needs,
      .cost = col2im_cost,
      .scratch = col2im_scratch,
      .run = run_col2im<T>,
  };
}

constexpr Kernel kTable[] = {
    col2im_kernel<float>("fp32->fp32"),
    col2im_kernel<int32_t>("int32->int32"),
    col2im_kernel<int64_t>("int64->int64"),
    col2im_kernel<uint64_t>("uint64->uint64"),
};

}  // namespace

std::span<const Kernel> col2im_table() { return kTable; }

}  // namespace hexane::cpu
