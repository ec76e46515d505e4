// quantize: fp32 or fp16 to integers of 8 or 16 bits, saturate(round(x / scale) + zero). dequantize: (x - zero) *
// scale.
//
// scale, fp32, and zero, of the integers' dtype, are one value for the tensor or one for each index of an axis; zero
// may be missing. scale and zero broadcast to the shape of x by strides of 0.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/quantized/quantize.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/quantized/quantize-inl.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "cpu/elementwise/elementwise.h"
#include "cpu/loop.h"
#include "cpu/operand.h"
#include "cpu/region.h"
#include "cpu/tables.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

struct QuantizeAttrs {
  int64_t axis;
};

struct QuantizeState {
  Loop whole;
  Row row;
  bool has_zero;
};

constexpr int64_t kChunk = 512;

template <class T>
T& at(std::byte* p, int64_t stride, int64_t i) {
  return *reinterpret_cast<T*>(p + i * stride);
}

// Loads n integers, `stride` bytes apart, as fp32.
template <class T>
HWY_NOINLINE void gather_integers(std::byte* from, int64_t stride, float* to, int64_t n) {
  if (stride == sizeof(T)) {
    for (int64_t i = 0; i < n; i += kLanes) {
      const V x = hn::ConvertTo(D(), load_integers(reinterpret_cast<const T*>(from) + i, n - i));
      if (n - i < kLanes) return store_part(x, to + i, n - i);
      store(x, to + i);
    }
    return;
  }
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(at<T>(from, stride, i));
}

// The operands of a row: x, scale, zero (ignored if there is no zero), output. A scale or zero for the whole row has a
// stride of 0.
template <class Zero>
struct Line {
  float scale, zero = 0;
  bool one_scale, one_zero;
  alignas(64) float scales[kChunk], zeros[kChunk];

  Line(std::byte* const* p, const int64_t* strides, const void* state)
      : scale(*reinterpret_cast<const float*>(p[1])),
        one_scale(strides[1] == 0),
        one_zero(!static_cast<const QuantizeState*>(state)->has_zero || strides[2] == 0) {
    if (static_cast<const QuantizeState*>(state)->has_zero)
      zero = static_cast<float>(*reinterpret_cast<const Zero*>(p[2]));
  }
  HWY_NOINLINE void fill(std::byte* const* p, const int64_t* strides, int64_t begin, int64_t count) {
    if (!one_scale) gather<float>(p[1] + begin * strides[1], strides[1], scales, count);
    if (!one_zero) gather_integers<Zero>(p[2] + begin * strides[2], strides[2], zeros, count);
  }
  V scales_at(int64_t i) const { return one_scale ? set(scale) : load(scales + i); }
  V zeros_at(int64_t i) const { return one_zero ? set(zero) : load(zeros + i); }
};

template <class T, class Q>
void quantize_row(std::byte* const* p, const int64_t* strides, int64_t n, const void* state) {
  const V low = set(std::numeric_limits<Q>::min()), high = set(std::numeric_limits<Q>::max());
  Line<Q> line(p, strides, state);
  alignas(64) float x[kChunk];
  alignas(64) Q result[kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = std::min(kChunk, n - i);
    const float* values = reinterpret_cast<const float*>(p[0]) + i;
    if (sizeof(T) != 4 || strides[0] != 4) {
      gather<T>(p[0] + i * strides[0], strides[0], x, count);
      values = x;
    }
    line.fill(p, strides, i, count);
    const bool dense = strides[3] == sizeof(Q);
    Q* to = dense ? reinterpret_cast<Q*>(p[3]) + i : result;
    for (int64_t j = 0; j < count; j += kLanes) {
      const int64_t left = count - j;
      const V v = left < kLanes ? load_part(values + j, left) : load(values + j);
      // Integers up to 2^24 are exact in fp32, and larger ones saturate in the result.
      const V moved = hn::Add(hn::Round(hn::Div(v, line.scales_at(j))), line.zeros_at(j));
      store_integers(rounded(hn::Min(high, hn::Max(low, moved))), to + j, left);
    }
    if (!dense)
      for (int64_t j = 0; j < count; ++j) at<Q>(p[3], strides[3], i + j) = result[j];
  }
}

template <class Q, class T>
void dequantize_row(std::byte* const* p, const int64_t* strides, int64_t n, const void* state) {
  Line<Q> line(p, strides, state);
  alignas(64) float x[kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = std::min(kChunk, n - i);
    gather_integers<Q>(p[0] + i * strides[0], strides[0], x, count);
    line.fill(p, strides, i, count);
    for (int64_t j = 0; j < count; j += kLanes)
      store(hn::Mul(hn::Sub(load(x + j), line.zeros_at(j)), line.scales_at(j)), x + j);
    scatter<T>(x, p[3] + i * strides[3], strides[3], count);
  }
}

// Dequantises int32 sums in fp64, since fp32 cannot hold them, and rounds once.
void scale_sums_row(std::byte* const* p, const int64_t* strides, int64_t n, const void* state) {
  const bool has_zero = static_cast<const QuantizeState*>(state)->has_zero;
  for (int64_t i = 0; i < n; ++i) {
    const double zero = has_zero ? at<int32_t>(p[2], strides[2], i) : 0, scale = at<float>(p[1], strides[1], i);
    at<engine_half>(p[3], strides[3], i) = to_engine_half((at<int32_t>(p[0], strides[0], i) - zero) * scale);
  }
}

// The operands x, scale and zero with the shape of the output; the scale stands in for a missing zero. If the last axis
// is not dense but an earlier, longer axis is (an image stored with channels first), the two axes are swapped, so that
// the loop runs along dense rows.
struct Spread {
  int64_t shape[8], strides[4][8] = {};
  Tensor inputs[3], out;
  int first = -1, second = -1;  // the axes that changed places

  Spread(const char* name, const Call& call, bool has_zero) {
    out = call.outputs[0];
    inputs[0] = call.inputs[0];
    for (int i = 1; i < 3; ++i) {
      const Tensor& from = call.inputs[i == 2 && !has_zero ? 1 : i];
      if (from.rank == 1)
        strides[i - 1][check_axis(name, call.attributes<QuantizeAttrs>().axis, out.rank)] = from.strides[0];
      inputs[i] = from;
      inputs[i].rank = out.rank;
      inputs[i].shape = out.shape;
      inputs[i].strides = strides[i - 1];
    }
    find_rows();
  }
  int place(int axis) const { return axis == first ? second : axis == second ? first : axis; }
  Call call(const Call& whole) const { return {inputs, {&out, 1}, nullptr, nullptr, nullptr, whole.numerics}; }

 private:
  void find_rows() {
    const int64_t item = item_bytes(inputs[0]);
    const int last = out.rank - 1;
    if (last < 1 || inputs[0].strides[last] == item) return;
    const int64_t* end = inputs[0].strides + last;
    const int rows = static_cast<int>(std::find(inputs[0].strides, end, item) - inputs[0].strides);
    if (rows == last || out.shape[rows] <= out.shape[last]) return;
    first = rows, second = last;
    std::copy(out.shape, out.shape + out.rank, shape);
    std::copy(inputs[0].strides, inputs[0].strides + out.rank, strides[2]);
    std::copy(out.strides, out.strides + out.rank, strides[3]);
    std::swap(shape[first], shape[second]);
    for (auto& each : strides) std::swap(each[first], each[second]);
    inputs[0].strides = strides[2];
    out.strides = strides[3];
    out.shape = inputs[0].shape = inputs[1].shape = inputs[2].shape = shape;
  }
};

void check_spread(const char* name, const char* operand, const Call& call, const Tensor& t) {
  check_operand(name, operand, t);
  const Tensor& out = call.outputs[0];
  if (t.rank == 0) return;
  const int axis = check_axis(name, call.attributes<QuantizeAttrs>().axis, out.rank);
  if (t.rank != 1 || t.shape[0] != out.shape[axis])
    fail(name, operand, " shape: got ", shape_text(t), ", need () or (", out.shape[axis], ",)");
}

Prepared prepare(const char* name, const Call& call, Row row) {
  if (call.inputs.size() < 2 || call.inputs.size() > 3 || call.outputs.size() != 1)
    fail(name, "got ", call.inputs.size(), " inputs and ", call.outputs.size(), " outputs, need 2 or 3 and 1");
  check_operand(name, "x", call.inputs[0]);
  check_written(name, "output", call.outputs[0]);
  check_same_shape(name, call.inputs[0], call.outputs[0]);
  check_spread(name, "scale", call, call.inputs[1]);
  const bool has_zero = call.inputs.size() > 2 && call.inputs[2].present();
  if (has_zero) check_spread(name, "zero", call, call.inputs[2]);
  const Spread spread(name, call, has_zero);
  return std::make_shared<QuantizeState>(QuantizeState{make_loop(spread.call(call), 3, -1, {}), row, has_zero});
}

template <class T, class Q>
Prepared prepare_quantize(const Call& call) {
  return prepare("quantize", call, quantize_row<T, Q>);
}

template <class Q, class T>
Prepared prepare_dequantize(const Call& call) {
  return prepare("dequantize", call, dequantize_row<Q, T>);
}

Prepared prepare_scale_sums(const Call& call) { return prepare("dequantize", call, scale_sums_row); }

Box needs(const Call& call, int input, const Box& out) {
  if (input == 0) return out;
  Box box = whole(call.inputs[input]);
  const int64_t axis = call.attributes<QuantizeAttrs>().axis;
  if (box.rank == 1) box[0] = out[static_cast<int>(axis < 0 ? axis + out.rank : axis)];
  return box;
}

void run(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const auto& state = call.state<QuantizeState>();
  const Spread spread("quantize", call, state.has_zero);
  const Call all = spread.call(call);
  if (covers(call, axis, range))
    walk(state.whole, all, state.row, &state);
  else
    walk(make_loop(all, 3, spread.place(axis), range), all, state.row, &state);
}

constexpr Kernel row(const char* name, const char* dtypes, Prepared (*prepare)(const Call&),
                     const char* family = "ieee") {
  return {
      .name = name,
      .dtypes = dtypes,
      .family = family,
      .attrs = "axis:i",
      .attrs_bytes = sizeof(QuantizeAttrs),
      .accepts = "strided",
      .prepare = prepare,
      .cuts = cut_every_axis,
      .needs = needs,
      .cost = elementwise_cost<150>,
      .run = run,
  };
}
#define HEXANE_BOTH_WAYS(integer, T)                                                             \
  row("quantize", "fp32,fp32," integer "...->" integer, prepare_quantize<float, T>),             \
      row("quantize", "fp16,fp32," integer "...->" integer, prepare_quantize<float16_t, T>),     \
      row("dequantize", integer ",fp32," integer "...->fp32", prepare_dequantize<T, float>),     \
      row("dequantize", integer ",fp32," integer "...->fp16", prepare_dequantize<T, float16_t>), \
      row("dequantize", integer ",fp32," integer "...->fp16", prepare_dequantize<T, engine_half>, "engine")

const Kernel kTable[] = {
    HEXANE_BOTH_WAYS("int8", int8_t),
    HEXANE_BOTH_WAYS("uint8", uint8_t),
    HEXANE_BOTH_WAYS("int16", int16_t),
    HEXANE_BOTH_WAYS("uint16", uint16_t),
    row("dequantize", "int32,fp32,int32...->fp32", prepare_dequantize<int32_t, float>),
    row("dequantize", "int32,fp32,int32...->fp16", prepare_dequantize<int32_t, float16_t>),
    row("dequantize", "int32,fp32,int32...->fp16", prepare_scale_sums, "engine"),
};

std::span<const Kernel> quantize_kernels() { return kTable; }

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(quantize_kernels);
std::span<const Kernel> quantize_table() { return HWY_DYNAMIC_DISPATCH(quantize_kernels)(); }
}  // namespace hexane::cpu
#endif
