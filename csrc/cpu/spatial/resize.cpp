// Resizes images [N, W, C] or [N, H, W, C]. Output i along an axis reads the input at the coordinate (i * scale +
// offset) / unit. The formula covers every coordinate transformation of ONNX Resize. resize_nearest, which rounds
// coordinates to indices, computes them in integers. The inputs of each output row and column are computed once.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/elementwise/elementwise.h"
#include "cpu/move/strided_copy.h"
#include "cpu/operand.h"
#include "cpu/tables.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/spatial/resize.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include <hwy/highway.h>
#include "core/engine_half-inl.h"
#include "core/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using hexane::HWY_NAMESPACE::load_engine_half;
using hexane::HWY_NAMESPACE::load_half;
using hexane::HWY_NAMESPACE::store_engine_half;
using hexane::HWY_NAMESPACE::store_half;

struct LinearAttributes {
  double scale_h, scale_w;
  double offset_h, offset_w;
  double unit_h, unit_w;
};

struct NearestAttributes {
  int64_t scale_h, scale_w;
  int64_t offset_h, offset_w;
  int64_t unit_h, unit_w;
  uint64_t mode;  // "floor" | "ceil" | "round_prefer_floor" | "round_prefer_ceil"
};

__extension__ using Wide = __int128;

using Words = hn::CappedTag<uint32_t, 16>;
constexpr int64_t kWordLanes = hn::MaxLanes(Words());

// The two inputs and the weight for one output index along an axis: (1 - weight) * in[low] + weight * in[high].
struct Source {
  int64_t low, high;
  float weight;
};

// A vector of an output row with one channel. Lane i is the input element first + lanes[i].
struct Block {
  int64_t column, first;
  uint32_t lanes[kWordLanes];
};

struct ResizeState {
  std::vector<Source> rows, columns;  // A tensor of rank 3 has one row.
  std::vector<Block> blocks;          // Empty if the inputs of some output vector span more than one vector.
  int row_axis, column_axis;          // Axes of rows and columns in the tensors; -2: none.
};

Wide floor_of(Wide n, Wide d) { return n / d - (n % d < 0); }

// Rounds n / d to an integer.
Wide rounded(std::string_view mode, Wide n, Wide d) {
  if (mode == "floor") return floor_of(n, d);
  if (mode == "ceil") return -floor_of(-n, d);
  if (mode == "round_prefer_floor") return -floor_of(d - 2 * n, 2 * d);
  if (mode == "round_prefer_ceil") return floor_of(2 * n + d, 2 * d);
  fail("resize_nearest", "mode: got '", mode, "', need floor, ceil, round_prefer_floor or round_prefer_ceil");
}

void check_extents(const char* name, int64_t out, int64_t in) {
  if (out > 0 && in < 1) fail(name, "input: got no elements, need one or more");
  if (in > int64_t{1} << 31 || out > int64_t{1} << 31) fail(name, "axis: got ", in, " to ", out, ", need up to 2^31");
}

std::vector<Source> nearest(int64_t out, int64_t in, int64_t scale, int64_t offset, int64_t unit,
                            std::string_view mode) {
  constexpr int64_t kMost = int64_t{1} << 62;
  if (scale > kMost || scale < -kMost || offset > kMost || offset < -kMost || unit > kMost || unit < 1)
    fail("resize_nearest", "scale, offset and unit: got ", scale, ", ", offset, " and ", unit,
         ", need up to 2^62, and a positive unit");
  check_extents("resize_nearest", out, in);
  std::vector<Source> result(static_cast<size_t>(out));
  for (int64_t i = 0; i < out; ++i) {
    const Wide at = rounded(mode, Wide{i} * scale + offset, unit);
    const auto low = static_cast<int64_t>(std::clamp<Wide>(at, 0, in - 1));
    result[static_cast<size_t>(i)] = {low, low, 0};
  }
  return result;
}

std::vector<Source> linear(int64_t out, int64_t in, double scale, double offset, double unit) {
  if (!std::isfinite(scale) || !std::isfinite(offset) || !std::isfinite(unit) || unit <= 0)
    fail("resize_linear", "scale, offset and unit: got ", scale, ", ", offset, " and ", unit,
         ", need finite numbers and a positive unit");
  check_extents("resize_linear", out, in);
  std::vector<Source> result(static_cast<size_t>(out));
  for (int64_t i = 0; i < out; ++i) {
    double at = (static_cast<double>(i) * scale + offset) / unit;
    at = std::clamp(at, 0.0, static_cast<double>(in - 1));
    const auto low = static_cast<int64_t>(at);
    result[static_cast<size_t>(i)] = {low, std::min(low + 1, in - 1),
                                      static_cast<float>(at - static_cast<double>(low))};
  }
  return result;
}

// Plans a row in vectors; the last vector overlaps the previous vector. Returns nothing if a vector's inputs span more
// than one vector.
std::vector<Block> blocks(const std::vector<Source>& columns, int64_t in) {
  const auto out = static_cast<int64_t>(columns.size());
  std::vector<Block> result;
  if (out < kWordLanes || in < kWordLanes) return result;
  for (int64_t c = 0; c < out; c += kWordLanes) {
    Block block{std::min(c, out - kWordLanes), in - kWordLanes, {}};
    const Source* from = columns.data() + block.column;
    for (int64_t i = 0; i < kWordLanes; ++i) block.first = std::min(block.first, from[i].low);
    for (int64_t i = 0; i < kWordLanes; ++i) {
      if (from[i].low - block.first >= kWordLanes) return {};
      block.lanes[i] = static_cast<uint32_t>(from[i].low - block.first);
    }
    result.push_back(block);
  }
  return result;
}

// The inputs for each output row and column.
struct Lines {
  std::vector<Source> rows, columns;
};

Lines lines(const Tensor& in, const Tensor& out, const LinearAttributes& a, std::string_view) {
  const int last = in.rank - 1;
  return {in.rank == 4 ? linear(out.shape[1], in.shape[1], a.scale_h, a.offset_h, a.unit_h) : std::vector<Source>(1),
          linear(out.shape[last - 1], in.shape[last - 1], a.scale_w, a.offset_w, a.unit_w)};
}

Lines lines(const Tensor& in, const Tensor& out, const NearestAttributes& a, std::string_view mode) {
  const int last = in.rank - 1;
  return {
      in.rank == 4 ? nearest(out.shape[1], in.shape[1], a.scale_h, a.offset_h, a.unit_h, mode) : std::vector<Source>(1),
      nearest(out.shape[last - 1], in.shape[last - 1], a.scale_w, a.offset_w, a.unit_w, mode)};
}

// Prepares a resize. `mode` is empty for linear.
template <class Attributes>
Prepared prepare_resize(const char* name, const Call& call, std::string_view mode) {
  const Tensor &in = call.inputs[0], &out = call.outputs[0];
  check_operand(name, "input", in);
  check_written(name, "output", out);
  if (in.rank != 3 && in.rank != 4) fail(name, "input rank: got ", in.rank, ", need 3 or 4");
  if (out.rank != in.rank) fail(name, "output rank: got ", out.rank, ", need ", in.rank);
  if (in.ring && in.rank == 3) fail(name, "input: got a ring of ", in.ring, " columns, need all of them");
  const int last = in.rank - 1;
  if (out.shape[0] != in.shape[0] || out.shape[last] != in.shape[last] || item_bytes(out) != item_bytes(in))
    fail(name, "output: got ", shape_text(out), " of ", info(out.dtype).name, ", need the batch and channels of ",
         shape_text(in), " of ", info(in.dtype).name);
  check_image(name, "input", in);
  check_image(name, "output", out);
  ResizeState state;
  state.row_axis = in.rank == 4 ? 1 : -2;
  state.column_axis = in.rank - 2;
  Lines found = lines(in, out, call.attributes<Attributes>(), mode);
  state.rows = std::move(found.rows);
  state.columns = std::move(found.columns);
  if (!mode.empty() && item_bytes(in) == sizeof(uint32_t)) state.blocks = blocks(state.columns, in.shape[last - 1]);
  return std::make_shared<ResizeState>(std::move(state));
}

Prepared prepare_nearest(const Call& call) {
  const std::string_view mode = call.string(call.attributes<NearestAttributes>().mode);
  rounded(mode, 0, 1);  // throws for an unknown mode, even if the output is empty
  return prepare_resize<NearestAttributes>("resize_nearest", call, mode);
}

Prepared prepare_linear(const Call& call) { return prepare_resize<LinearAttributes>("resize_linear", call, {}); }

// The part of the output that a range of an axis selects.
struct Part {
  Range batch, rows, columns, channels;
  int64_t in_row, in_column, out_row, out_column;  // strides
};

Part part_of(const Call& call, int axis, Range range) {
  const Tensor &in = call.inputs[0], &out = call.outputs[0];
  const auto& state = call.state<ResizeState>();
  const auto select = [&](int i, int64_t extent) { return i == axis ? range : Range{0, extent}; };
  const int last = out.rank - 1, row = state.row_axis, column = state.column_axis;
  return {select(0, out.shape[0]),           select(row, static_cast<int64_t>(state.rows.size())),
          select(column, out.shape[column]), select(last, out.shape[last]),
          row < 0 ? 0 : in.strides[row],     in.strides[column],
          row < 0 ? 0 : out.strides[row],    out.strides[column]};
}

// Resizes a row of one-channel pixels by nearest.
template <typename T>
void show_row(const ResizeState& state, Range columns, const std::byte* from, std::byte* to) {
  const T* in = reinterpret_cast<const T*>(from);
  T* out = reinterpret_cast<T*>(to);
  if constexpr (sizeof(T) == sizeof(uint32_t)) {
    if (!state.blocks.empty() && columns == Range{0, static_cast<int64_t>(state.columns.size())}) {
      for (const Block& block : state.blocks)
        hn::StoreU(
            hn::TableLookupLanes(hn::LoadU(Words(), in + block.first), hn::SetTableIndices(Words(), block.lanes)),
            Words(), out + block.column);
      return;
    }
  }
  for (int64_t c = columns.begin; c < columns.end; ++c)
    out[c - columns.begin] = in[state.columns[static_cast<size_t>(c)].low];
}

void show_row(const ResizeState& state, int64_t item, Range columns, const std::byte* from, std::byte* to) {
  switch (item) {
    case 1:
      return show_row<uint8_t>(state, columns, from, to);
    case 2:
      return show_row<uint16_t>(state, columns, from, to);
    case 4:
      return show_row<uint32_t>(state, columns, from, to);
    default:
      return show_row<uint64_t>(state, columns, from, to);
  }
}

void run_nearest(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const Tensor &in = call.inputs[0], &out = call.outputs[0];
  if (out.size() == 0) return;
  const auto& state = call.state<ResizeState>();
  const Part part = part_of(call, axis, range);
  const int64_t item = item_bytes(out), bytes = (part.channels.end - part.channels.begin) * item;
  const int64_t row_bytes = (part.columns.end - part.columns.begin) * bytes;
  const bool dense = part.out_column == bytes;
  const bool elements = dense && bytes == item && part.in_column == item;
  for (int64_t n = part.batch.begin; n < part.batch.end; ++n) {
    const std::byte* image = in.data + n * in.strides[0] + part.channels.begin * item;
    std::byte* to = out.data + n * out.strides[0] + part.channels.begin * item;
    for (int64_t r = part.rows.begin; r < part.rows.end; ++r) {
      const int64_t source_row = state.rows[static_cast<size_t>(r)].low;
      std::byte* row = to + r * part.out_row + part.columns.begin * part.out_column;
      if (dense && r > part.rows.begin && state.rows[static_cast<size_t>(r - 1)].low == source_row) {
        copy_run(row, row - part.out_row, row_bytes);
        continue;
      }
      const std::byte* from = image + in.kept_row(source_row) * part.in_row;
      if (elements) {
        show_row(state, item, part.columns, from, row);
        continue;
      }
      for (int64_t c = part.columns.begin; c < part.columns.end; ++c, row += part.out_column)
        copy_run(row, from + state.columns[static_cast<size_t>(c)].low * part.in_column, bytes);
    }
  }
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const float* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const hwy::float16_t* from) {
  return load_half(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const engine_half* from) {
  return load_engine_half(d, from);
}
template <class D>
HWY_INLINE void store(D d, hn::Vec<D> value, float* to) {
  hn::StoreU(value, d, to);
}
template <class D>
HWY_INLINE void store(D d, hn::Vec<D> value, hwy::float16_t* to) {
  store_half(d, value, to);
}

template <class D>
HWY_INLINE void store(D d, hn::Vec<D> value, engine_half* to) {
  store_engine_half(d, value, to);
}

// The four pixels around a coordinate, and its distance from the upper left pixel.
template <typename T>
struct Corners {
  const T *upper_left, *upper_right, *lower_left, *lower_right;
  float down, right;
};

template <class D, typename T>
HWY_INLINE void blend_vector(D d, const Corners<T>& p, int64_t c, T* out) {
  const auto right = hn::Set(d, p.right), left = hn::Set(d, 1.0f - p.right);
  if constexpr (kIsEngine<T>) {  // with fused multiply-adds, the bits would depend on the instruction set
    const auto blend = [&](const T* a, const T* b)
                           HWY_ATTR { return hn::Add(hn::Mul(right, load(d, b + c)), hn::Mul(left, load(d, a + c))); };
    const auto upper = hn::Mul(hn::Set(d, 1.0f - p.down), blend(p.upper_left, p.upper_right));
    return store(d, hn::Add(hn::Mul(hn::Set(d, p.down), blend(p.lower_left, p.lower_right)), upper), out + c);
  }
  const auto upper = hn::MulAdd(right, load(d, p.upper_right + c), hn::Mul(left, load(d, p.upper_left + c)));
  const auto lower = hn::MulAdd(right, load(d, p.lower_right + c), hn::Mul(left, load(d, p.lower_left + c)));
  store(d, hn::MulAdd(hn::Set(d, p.down), lower, hn::Mul(hn::Set(d, 1.0f - p.down), upper)), out + c);
}

// Blends the four corner pixels. There must be at least a vector of channels. If the channels are no multiple of a
// vector, the last vector overlaps the previous vector.
template <class D, typename T>
HWY_INLINE void blend_channels(D d, const Corners<T>& corners, Range channels, T* out) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t c = channels.begin;
  for (; c + lanes <= channels.end; c += lanes) blend_vector(d, corners, c, out);
  if (c < channels.end) blend_vector(d, corners, channels.end - lanes, out);
}

template <typename T>
void run_linear(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const Tensor &in = call.inputs[0], &out = call.outputs[0];
  if (out.size() == 0) return;
  const auto& state = call.state<ResizeState>();
  const Part part = part_of(call, axis, range);
  const hn::ScalableTag<float> wide;
  const hn::FixedTag<float, 4> narrow;
  const hn::FixedTag<float, 1> one;
  const auto count = static_cast<size_t>(part.channels.end - part.channels.begin);
  for (int64_t n = part.batch.begin; n < part.batch.end; ++n)
    for (int64_t r = part.rows.begin; r < part.rows.end; ++r) {
      const Source& row = state.rows[static_cast<size_t>(r)];
      const std::byte* upper = in.data + n * in.strides[0] + in.kept_row(row.low) * part.in_row;
      const std::byte* lower = in.data + n * in.strides[0] + in.kept_row(row.high) * part.in_row;
      for (int64_t c = part.columns.begin; c < part.columns.end; ++c) {
        const Source& column = state.columns[static_cast<size_t>(c)];
        const int64_t left = column.low * part.in_column, right = column.high * part.in_column;
        const auto pixel = [](const std::byte* at) { return reinterpret_cast<const T*>(at); };
        const Corners<T> corners{pixel(upper + left),  pixel(upper + right), pixel(lower + left),
                                 pixel(lower + right), row.weight,           column.weight};
        T* to = reinterpret_cast<T*>(out.data + n * out.strides[0] + r * part.out_row + c * part.out_column);
        if (count >= hn::Lanes(wide))
          blend_channels(wide, corners, part.channels, to);
        else if (count >= hn::Lanes(narrow))
          blend_channels(narrow, corners, part.channels, to);
        else
          blend_channels(one, corners, part.channels, to);
      }
    }
}

void resize_cuts(const Call& call, Cuts& cuts) {
  const Tensor& out = call.outputs[0];
  const int last = out.rank - 1;
  const auto add = [&](int axis, int64_t grain) {
    if (out.shape[axis] > grain) cuts.add(axis, out.shape[axis], grain);
  };
  add(1, 1);
  add(last, 64 / item_bytes(out));
  add(0, 1);
  if (out.rank == 4) add(2, 1);
}

template <bool kLinear>
Box resize_needs(const Call& call, int, const Box& out) {
  const auto& state = call.state<ResizeState>();
  Box box = out;
  const auto shown = [&](const std::vector<Source>& list, Range part) {
    Range range{list[static_cast<size_t>(part.begin)].low, 0};
    for (int64_t i = part.begin; i < part.end; ++i) {
      const Source& source = list[static_cast<size_t>(i)];
      range = {std::min(range.begin, source.low), std::max(range.end, (kLinear ? source.high : source.low) + 1)};
    }
    return range;
  };
  if (state.row_axis > 0) box[state.row_axis] = shown(state.rows, out[state.row_axis]);
  box[state.column_axis] = shown(state.columns, out[state.column_axis]);
  return box;
}

template <bool kLinear>
int64_t resize_cost(const Call& call) {
  return 50 + call.outputs[0].size() * item_bytes(call.outputs[0]) / (kLinear ? 20 : 32);
}

constexpr Kernel nearest(const char* dtypes) {
  return {
      .name = "resize_nearest",
      .dtypes = dtypes,
      .family = "any",
      .attrs = "scale_h:i scale_w:i offset_h:i offset_w:i unit_h:i unit_w:i mode:s",
      .attrs_bytes = sizeof(NearestAttributes),
      .accepts = "rows",
      .prepare = prepare_nearest,
      .cuts = resize_cuts,
      .needs = resize_needs<false>,
      .cost = resize_cost<false>,
      .run = run_nearest,
      .reads_ring = true,
  };
}
template <class T>
constexpr Kernel linear(const char* dtypes) {
  return {
      .name = "resize_linear",
      .dtypes = dtypes,
      .family = kFamily<T>,
      .attrs = "scale_h:f scale_w:f offset_h:f offset_w:f unit_h:f unit_w:f",
      .attrs_bytes = sizeof(LinearAttributes),
      .accepts = "rows",
      .prepare = prepare_linear,
      .cuts = resize_cuts,
      .needs = resize_needs<true>,
      .cost = resize_cost<true>,
      .run = run_linear<T>,
      .reads_ring = true,
  };
}

const Kernel kTable[] = {
    nearest("8b->8b"),
    nearest("16b->16b"),
    nearest("32b->32b"),
    nearest("64b->64b"),
    linear<float>("fp32->fp32"),
    linear<hwy::float16_t>("fp16->fp16"),
    linear<engine_half>("fp16->fp16"),
};

std::span<const Kernel> table() { return kTable; }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace hexane::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(table);
std::span<const Kernel> resize_table() { return HWY_DYNAMIC_DISPATCH(table)(); }
}  // namespace hexane::cpu
#endif
