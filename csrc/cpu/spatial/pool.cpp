// Max and average pooling over channels-last tensors, [N, W, C], [N, H, W, C] or [N, D, H, W, C]. The kernels compute
// one output pixel at a time, in vectors of channels. The input rows of the windows are found once per output row.
#include <algorithm>
#include <limits>

#include "cpu/operand.h"
#include "cpu/region.h"
#include "cpu/sums.h"
#include "cpu/tables.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/spatial/pool.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include <hwy/highway.h>
#include "core/engine_half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using hexane::HWY_NAMESPACE::load_engine_half;
using hexane::HWY_NAMESPACE::load_half;
using hexane::HWY_NAMESPACE::store_engine_half;
using hexane::HWY_NAMESPACE::store_half;

struct MaxPoolAttributes {
  IntList kernel_sizes;  // all lists except `pads` have one number for each spatial axis
  IntList strides;
  IntList dilations;
  IntList pads;       // Pads before and after the first spatial axis, the second, ...
  int64_t ceil_mode;  // The last window may reach past the padding.
};

struct AvgPoolAttributes {
  MaxPoolAttributes window;
  int64_t exclude_padding;  // if true, sums are divided by the number of elements inside the input
};

// One spatial axis. With one or two spatial axes, PoolState::axes[0] has extent 1; with one axis, axes[2] also has
// extent 1.
struct PoolAxis {
  int64_t in = 1, out = 1, kernel = 1, stride = 1, dilation = 1, before = 0, after = 0;
  int64_t in_bytes = 0, out_bytes = 0;  // strides
  int64_t in_ring = 0;
  int tensor_axis = -2;  // axis of the tensor; -2: none

  int64_t start(int64_t o) const { return o * stride - before; }

  // Returns the number of taps of window o that lie before `end`.
  int64_t taps_before(int64_t o, int64_t end) const {
    const int64_t room = end - start(o);
    return room <= 0 ? 0 : std::min(kernel, (room + dilation - 1) / dilation);
  }

  // Returns the taps of window o that lie in the input.
  Range taps(int64_t o) const { return {taps_before(o, 0), std::max(taps_before(o, 0), taps_before(o, in))}; }

  int64_t in_offset(int64_t o, int64_t tap) const {
    const int64_t i = start(o) + tap * dilation;
    return (in_ring ? i % in_ring : i) * in_bytes;
  }
  int64_t out_offset(int64_t o) const { return o * out_bytes; }
};

struct PoolState {
  PoolAxis axes[3];
  bool exclude_padding;
};

// ---- functions of the elements of a window ----

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
template <class D, typename T>
HWY_INLINE hn::Vec<D> load(D d, const T* from) {
  if constexpr (sizeof(hn::TFromD<D>) == 1)
    return hn::LoadU(d, from);
  else
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<T, D>(), from));
}

template <class D, typename T>
HWY_INLINE void store(D d, hn::Vec<D> value, T* to) {
  if constexpr (std::is_same_v<T, hwy::float16_t>)
    store_half(d, value, to);
  else if constexpr (std::is_same_v<T, engine_half>)
    store_engine_half(d, value, to);
  else if constexpr (sizeof(T) < sizeof(hn::TFromD<D>))
    hn::StoreU(hn::DemoteTo(hn::Rebind<T, D>(), value), hn::Rebind<T, D>(), to);
  else
    hn::StoreU(value, d, to);
}

template <typename Element, typename Compute>
struct Max {
  using T = Element;
  using Lane = Compute;
  static constexpr bool kSums = false;
  float count;

  template <class D>
  HWY_INLINE hn::Vec<D> start(D d) const {
    if constexpr (std::is_same_v<Lane, float>)
      return hn::Set(d, -std::numeric_limits<float>::infinity());
    else
      return hn::Set(d, std::numeric_limits<Lane>::min());
  }
  template <class D>
  HWY_INLINE hn::Vec<D> combine(D, hn::Vec<D> best, hn::Vec<D> v) const {
    if constexpr (std::is_same_v<Lane, float>)
      return hn::IfThenElse(hn::IsNaN(v), v, hn::Max(v, best));  // Max keeps a NaN in its second operand
    else
      return hn::Max(best, v);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> finish(D d, hn::Vec<D> best) const {
    // Instruction sets differ in which of 0 and -0 is larger; on the engine it is 0.
    if constexpr (std::is_same_v<T, engine_half>) return hn::Add(best, hn::Zero(d));
    return best;
  }
};

template <typename Element>
struct Mean {
  using T = Element;
  using Lane = float;
  static constexpr bool kSums = true;
  float count;

  template <class D>
  HWY_INLINE hn::Vec<D> start(D d) const {
    return hn::Zero(d);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> combine(D, hn::Vec<D> sum, hn::Vec<D> v) const {
    return hn::Add(sum, v);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> finish(D d, hn::Vec<D> sum) const {
    return hn::Div(sum, hn::Set(d, count));
  }
};

// The mean of integers, rounded to nearest, halves away from 0, as in TFLite.
template <typename Element>
struct RoundedMean {
  using T = Element;
  using Lane = int32_t;
  static constexpr bool kSums = false;  // integer sums do not depend on the order
  int32_t count;

  template <class D>
  HWY_INLINE hn::Vec<D> start(D d) const {
    return hn::Zero(d);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> combine(D, hn::Vec<D> sum, hn::Vec<D> v) const {
    return hn::Add(sum, v);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> finish(D d, hn::Vec<D> sum) const {
    alignas(64) int32_t each[hn::MaxLanes(D())];
    hn::Store(sum, d, each);
    for (size_t i = 0; i < hn::Lanes(d); ++i)
      each[i] = (each[i] > 0 ? each[i] + count / 2 : each[i] - count / 2) / count;
    return hn::Load(d, each);
  }
};

// The window of one output pixel: taps [0, taps) of each row, `step` bytes apart, from `offset` on.
struct Window {
  const std::byte* const* rows;
  int64_t num_rows, taps, offset, step;
};

template <int kVectors, class Op, class D>
HWY_INLINE void add_taps(Op op, D d, const Window& window, int64_t row, Range taps, int64_t channel,
                         hn::Vec<D> (&acc)[kVectors]) {
  using T = typename Op::T;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const std::byte* at = window.rows[row] + window.offset + taps.begin * window.step;
  for (int64_t t = taps.begin; t < taps.end; ++t, at += window.step)
    for (int v = 0; v < kVectors; ++v)
      acc[v] = op.combine(d, acc[v], load(d, reinterpret_cast<const T*>(at) + channel + v * lanes));
}

// Sums a large window in blocks of taps.
template <int kVectors, class Op, class D>
HWY_NOINLINE void sum_blocks(Op op, D d, const Window& window, int64_t channel, hn::Vec<D> (&total)[kVectors]) {
  const int64_t taps = window.taps, all = window.num_rows * taps, block = sum_block(all);
  for (int64_t i = 0; i < all;) {
    hn::Vec<D> acc[kVectors];
    for (int v = 0; v < kVectors; ++v) acc[v] = op.start(d);
    for (const int64_t end = std::min(all, i + block); i < end;) {
      const int64_t tap = i % taps, count = std::min(taps - tap, end - i);
      add_taps(op, d, window, i / taps, {tap, tap + count}, channel, acc);
      i += count;
    }
    for (int v = 0; v < kVectors; ++v) total[v] = op.combine(d, total[v], acc[v]);
  }
}

template <int kVectors, bool kLong, class Op, class D>
HWY_INLINE void pool_vectors(Op op, D d, const Window& window, int64_t channel, std::byte* out) {
  using T = typename Op::T;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<D> acc[kVectors];
  for (int v = 0; v < kVectors; ++v) acc[v] = op.start(d);
  if constexpr (kLong) {
    sum_blocks(op, d, window, channel, acc);
  } else {
    for (int64_t r = 0; r < window.num_rows; ++r) add_taps(op, d, window, r, {0, window.taps}, channel, acc);
  }
  for (int v = 0; v < kVectors; ++v) store(d, op.finish(d, acc[v]), reinterpret_cast<T*>(out) + channel + v * lanes);
}

// Pools at least one vector of channels. If the channels are no multiple of a vector, the last vector overlaps the
// previous vector.
template <bool kLong, class Op, class D>
HWY_INLINE void pool_channels(Op op, D d, const Window& window, Range channels, std::byte* out) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t c = channels.begin;
  for (; c + 4 * lanes <= channels.end; c += 4 * lanes) pool_vectors<4, kLong>(op, d, window, c, out);
  for (; c < channels.end; c += lanes) pool_vectors<1, kLong>(op, d, window, std::min(c, channels.end - lanes), out);
}

template <bool kLong, class Op>
void pool_pixel(Op op, const Window& window, Range channels, std::byte* out) {
  using Lane = typename Op::Lane;
  const hn::ScalableTag<Lane> wide;
  const hn::FixedTag<Lane, 16 / sizeof(Lane)> narrow;
  const hn::FixedTag<Lane, 1> one;
  const size_t count = static_cast<size_t>(channels.end - channels.begin);
  if (count < hn::Lanes(narrow)) return pool_channels<kLong>(op, one, window, channels, out);
  if constexpr (hn::MaxLanes(wide) > hn::MaxLanes(narrow))
    if (count < hn::Lanes(wide)) return pool_channels<kLong>(op, narrow, window, channels, out);
  pool_channels<kLong>(op, wide, window, channels, out);
}

// ---- the loop over output pixels ----

template <class Op>
void run_pool(const Call& call, int axis, Range range, std::byte* scratch, const std::byte*) {
  const Tensor &in = call.inputs[0], &out = call.outputs[0];
  if (out.size() == 0) return;
  const auto& state = call.state<PoolState>();
  const PoolAxis &depth = state.axes[0], &height = state.axes[1], &width = state.axes[2];
  const int last = out.rank - 1;
  const auto part = [&](int i, int64_t extent) { return i == axis ? range : Range{0, extent}; };
  const Range batch = part(0, out.shape[0]), channels = part(last, out.shape[last]);
  const Range planes = part(depth.tensor_axis, depth.out), rows = part(height.tensor_axis, height.out),
              columns = part(width.tensor_axis, width.out);
  const auto** table = reinterpret_cast<const std::byte**>(scratch);
  for (int64_t n = batch.begin; n < batch.end; ++n)
    for (int64_t od = planes.begin; od < planes.end; ++od)
      for (int64_t oh = rows.begin; oh < rows.end; ++oh) {
        const Range d_taps = depth.taps(od), h_taps = height.taps(oh);
        int64_t num_rows = 0;
        for (int64_t kd = d_taps.begin; kd < d_taps.end; ++kd)
          for (int64_t kh = h_taps.begin; kh < h_taps.end; ++kh)
            table[num_rows++] = in.data + n * in.strides[0] + depth.in_offset(od, kd) + height.in_offset(oh, kh);
        const int64_t padded_rows =
            depth.taps_before(od, depth.in + depth.after) * height.taps_before(oh, height.in + height.after);
        std::byte* to = out.data + n * out.strides[0] + depth.out_offset(od) + height.out_offset(oh);
        for (int64_t ow = columns.begin; ow < columns.end; ++ow) {
          const Range w_taps = width.taps(ow);
          const int64_t taps = w_taps.end - w_taps.begin;
          const int64_t count =
              state.exclude_padding ? num_rows * taps : padded_rows * width.taps_before(ow, width.in + width.after);
          const Window window{table, num_rows, taps, width.in_offset(ow, w_taps.begin),
                              width.dilation * width.in_bytes};
          const Op op{static_cast<decltype(Op::count)>(std::max<int64_t>(count, 1))};
          std::byte* pixel = to + width.out_offset(ow);
          if (Op::kSums && num_rows * taps > kShortSum)
            pool_pixel<Op::kSums>(op, window, channels, pixel);
          else
            pool_pixel<false>(op, window, channels, pixel);
        }
      }
}

// ---- the table ----

constexpr int64_t kMost = int64_t{1} << 31;  // products of two attributes do not overflow

PoolAxis pool_axis(const char* name, const Call& call, const MaxPoolAttributes& a, int axis) {
  const Tensor &in = call.inputs[0], &out = call.outputs[0];
  const int i = axis - 1;
  PoolAxis result{in.shape[axis],
                  out.shape[axis],
                  a.kernel_sizes.values[i],
                  a.strides.values[i],
                  a.dilations.values[i],
                  a.pads.values[2 * i],
                  a.pads.values[2 * i + 1],
                  in.strides[axis],
                  out.strides[axis],
                  axis == 1 ? in.ring : 0,
                  axis};
  for (const int64_t value : {result.kernel, result.stride, result.dilation})
    if (value < 1 || value >= kMost)
      fail(name, "axis ", axis, " kernel size, stride or dilation: got ", value, ", need 1 to ", kMost - 1);
  for (const int64_t value : {result.before, result.after})
    if (value < 0 || value >= kMost) fail(name, "axis ", axis, " pad: got ", value, ", need 0 to ", kMost - 1);
  if (result.in < 1 || result.in >= kMost) fail(name, "axis ", axis, ": got ", result.in, " elements, need 1 or more");
  const int64_t room = result.in + result.before + result.after - (result.kernel - 1) * result.dilation - 1;
  const int64_t most = room < 0 ? 0 : (room + (a.ceil_mode ? result.stride - 1 : 0)) / result.stride + 1;
  const int64_t least = room < 0 ? 0 : room / result.stride + 1;
  if (result.out < least || result.out > most)
    fail(name, "axis ", axis, " of the output: got ", result.out, ", need ", least, " to ", most);
  return result;
}

void check_pool_operand(const char* name, const char* operand, const Tensor& tensor,
                        void (*check)(const char*, const char*, const Tensor&)) {
  if (tensor.rank < 3 || tensor.rank > 5) fail(name, operand, " rank: got ", tensor.rank, ", need 3 to 5");
  check(name, operand, tensor);
  check_image(name, operand, tensor);
}

Prepared prepare_pool(const char* name, const Call& call, const MaxPoolAttributes& a, bool exclude_padding) {
  const Tensor &in = call.inputs[0], &out = call.outputs[0];
  check_pool_operand(name, "input", in, check_operand);
  check_pool_operand(name, "output", out, check_written);
  if (out.rank != in.rank) fail(name, "output rank: got ", out.rank, ", need ", in.rank);
  if (out.shape[0] != in.shape[0] || out.shape[out.rank - 1] != in.shape[in.rank - 1])
    fail(name, "shape: got ", shape_text(out), " from ", shape_text(in), ", need the same batch and channels");
  const int spatial = in.rank - 2;
  for (const IntList* list : {&a.kernel_sizes, &a.strides, &a.dilations})
    if (list->count != spatial) fail(name, "window: got ", list->count, " numbers, need ", spatial);
  if (a.pads.count != 2 * spatial) fail(name, "pads: got ", a.pads.count, " numbers, need ", 2 * spatial);
  PoolState state{{}, exclude_padding};
  for (int i = 0; i < spatial; ++i) state.axes[i + (spatial < 3)] = pool_axis(name, call, a, i + 1);
  const int64_t rows =
      std::min(state.axes[0].kernel, state.axes[0].in) * std::min(state.axes[1].kernel, state.axes[1].in);
  if (rows > 1 << 22) fail(name, "window: got ", rows, " rows, need at most ", 1 << 22);
  return std::make_shared<PoolState>(state);
}

Prepared prepare_max_pool(const Call& call) {
  return prepare_pool("max_pool", call, call.attributes<MaxPoolAttributes>(), true);
}

Prepared prepare_avg_pool(const Call& call) {
  const auto& attributes = call.attributes<AvgPoolAttributes>();
  return prepare_pool("avg_pool", call, attributes.window, attributes.exclude_padding != 0);
}

Prepared prepare_q31_avg_pool(const Call& call) {
  constexpr const char* kName = "q31_avg_pool";
  constexpr int64_t kMostTaps = 1 << 22;  // taps whose sum fits in int32
  const auto& attributes = call.attributes<MaxPoolAttributes>();
  Prepared prepared = prepare_pool(kName, call, attributes, true);
  const auto& state = *static_cast<const PoolState*>(prepared.get());
  int64_t taps = 1;
  for (const PoolAxis& axis : state.axes) {
    taps *= std::min(axis.kernel, axis.in);
    if (taps > kMostTaps) fail(kName, "window: got ", taps, " elements or more, need at most ", kMostTaps);
  }
  return prepared;
}

void pool_cuts(const Call& call, Cuts& cuts) {
  const Tensor& out = call.outputs[0];
  const int last = out.rank - 1;
  const auto add = [&](int axis, int64_t grain) {
    if (out.shape[axis] > grain) cuts.add(axis, out.shape[axis], grain);
  };
  add(1, 1);
  add(last, 64 / item_bytes(out));
  add(0, 1);
  for (int axis = 2; axis < last; ++axis) add(axis, 1);
}

Box pool_needs(const Call& call, int, const Box& out) {
  const auto& a = call.attributes<MaxPoolAttributes>();  // AvgPoolAttributes begins with the same fields
  Box box = out;
  for (int axis = 1; axis + 1 < out.rank; ++axis) {
    const int i = axis - 1;
    box[axis] = reached(out[axis], a.strides.values[i], a.pads.values[2 * i],
                        (a.kernel_sizes.values[i] - 1) * a.dilations.values[i] + 1, call.inputs[0].shape[axis]);
  }
  return box;
}

int64_t pool_cost(const Call& call) {
  const auto& state = call.state<PoolState>();
  int64_t taps = 1;
  for (const PoolAxis& axis : state.axes) taps *= std::min(axis.kernel, axis.in);
  return 50 + call.outputs[0].size() * (taps + 4) * item_bytes(call.outputs[0]) / 64;
}

int64_t pool_scratch(const Call& call) {
  const auto& state = call.state<PoolState>();
  int64_t rows = 1;
  for (int i = 0; i < 2; ++i) rows *= std::min(state.axes[i].kernel, state.axes[i].in);
  return rows * static_cast<int64_t>(sizeof(std::byte*));
}

template <class Op, class Attributes>
constexpr Kernel pool(const char* name, const char* dtypes, const char* layout, Prepared (*prepare)(const Call&)) {
  return {
      .name = name,
      .dtypes = dtypes,
      .family = std::is_same_v<typename Op::T, engine_half> ? "engine" : "ieee",
      .attrs = layout,
      .attrs_bytes = sizeof(Attributes),
      .accepts = "rows",
      .prepare = prepare,
      .cuts = pool_cuts,
      .needs = pool_needs,
      .cost = pool_cost,
      .scratch = pool_scratch,
      .run = run_pool<Op>,
      .reads_ring = true,
  };
}
template <class Op>
constexpr Kernel max_pool(const char* dtypes) {
  return pool<Op, MaxPoolAttributes>("max_pool", dtypes, "kernel_sizes:L strides:L dilations:L pads:L ceil_mode:i",
                                     prepare_max_pool);
}

template <class Op>
constexpr Kernel avg_pool(const char* dtypes) {
  return pool<Op, AvgPoolAttributes>("avg_pool", dtypes,
                                     "kernel_sizes:L strides:L dilations:L pads:L ceil_mode:i exclude_padding:i",
                                     prepare_avg_pool);
}

template <typename T>
constexpr Kernel q31_avg_pool(const char* dtypes) {
  return pool<RoundedMean<T>, MaxPoolAttributes>(
      "q31_avg_pool", dtypes, "kernel_sizes:L strides:L dilations:L pads:L ceil_mode:i", prepare_q31_avg_pool);
}

const Kernel kTable[] = {
    max_pool<Max<float, float>>("fp32->fp32"),
    max_pool<Max<hwy::float16_t, float>>("fp16->fp16"),
    max_pool<Max<int8_t, int8_t>>("int8->int8"),
    max_pool<Max<uint8_t, uint8_t>>("uint8->uint8"),
    avg_pool<Mean<float>>("fp32->fp32"),
    avg_pool<Mean<hwy::float16_t>>("fp16->fp16"),
    max_pool<Max<engine_half, float>>("fp16->fp16"),
    avg_pool<Mean<engine_half>>("fp16->fp16"),
    q31_avg_pool<int8_t>("int8->int8"),
    q31_avg_pool<uint8_t>("uint8->uint8"),
};

std::span<const Kernel> table() { return kTable; }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace hexane::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(table);
std::span<const Kernel> pool_table() { return HWY_DYNAMIC_DISPATCH(table)(); }
}  // namespace hexane::cpu
#endif
