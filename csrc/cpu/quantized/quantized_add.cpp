// quantized_add: adds two 8-bit tensors, broadcast, as real numbers: (x - x_zero) * x_scale + (y - y_zero) * y_scale.
// Applies an epilogue of unary functions and quantises the result.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/quantized/quantized_add.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/quantized/quantize-inl.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "cpu/elementwise/elementwise.h"
#include "cpu/loop.h"
#include "cpu/operand.h"
#include "cpu/tables.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

constexpr const char* kName = "quantized_add";
constexpr int64_t kChunk = 512;

struct QuantizedAddAttrs {
  double x_scale;
  int64_t x_zero;
  double y_scale;
  int64_t y_zero;
  double output_scale;
  int64_t output_zero;
  Epilogue epilogue;
};

struct Slot {
  RowFunction function;
  float alpha, beta;
};

struct State {
  Loop whole;
  Row row;
  float scales[2];
  int32_t zeros[2];
  float output_scale, zero;
  int num_slots;
  Slot slots[4];
};

// Dequantises the first n of kLanes elements. `step` is 1, or 0 to repeat one element.
template <class T>
HWY_INLINE V real(const T* from, int64_t step, int64_t n, VI zero, V scale) {
  const VI steps = step ? load_integers(from, n) : hn::Set(DI(), *from);
  return hn::Mul(hn::ConvertTo(D(), hn::Sub(steps, zero)), scale);
}

// Returns n elements, `stride` bytes apart, as a dense array: in place if they are dense or one repeated element, else
// copied.
template <class T>
const T* dense(const std::byte* from, int64_t stride, int64_t n, T* to) {
  if (stride <= 1) return reinterpret_cast<const T*>(from);
  for (int64_t i = 0; i < n; ++i) to[i] = *reinterpret_cast<const T*>(from + i * stride);
  return to;
}

template <class X, class Y, class Q>
void row(std::byte* const* p, const int64_t* strides, int64_t n, const void* opaque) {
  const State& state = *static_cast<const State*>(opaque);
  const VI x_zero = hn::Set(DI(), state.zeros[0]), y_zero = hn::Set(DI(), state.zeros[1]);
  const V x_scale = set(state.scales[0]), y_scale = set(state.scales[1]), scale = set(state.output_scale),
          zero = set(state.zero), low = set(std::numeric_limits<Q>::min()), high = set(std::numeric_limits<Q>::max());
  const int64_t x_step = strides[0] != 0, y_step = strides[1] != 0;
  alignas(64) float values[kChunk];
  alignas(64) X xs[kChunk];
  alignas(64) Y ys[kChunk];
  alignas(64) Q result[kChunk];
  const auto stored = [&](V f, Q* to, int64_t left) HWY_ATTR {
    const V moved = hn::Add(hn::Round(hn::Div(f, scale)), zero);
    store_integers(rounded(hn::Min(high, hn::Max(low, moved))), to, left);
  };
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = std::min(kChunk, n - i);
    const X* x = dense(p[0] + i * strides[0], strides[0], count, xs);
    const Y* y = dense(p[1] + i * strides[1], strides[1], count, ys);
    Q* to = strides[2] == 1 ? reinterpret_cast<Q*>(p[2]) + i : result;
    const bool direct = state.num_slots == 0;
    for (int64_t j = 0; j < count; j += kLanes) {
      const V f = hn::Add(real(x + j * x_step, x_step, count - j, x_zero, x_scale),
                          real(y + j * y_step, y_step, count - j, y_zero, y_scale));
      if (direct)
        stored(f, to + j, count - j);
      else
        store(f, values + j);
    }
    for (int k = 0; k < state.num_slots; ++k)
      state.slots[k].function(values, count, state.slots[k].alpha, state.slots[k].beta);
    if (!direct)
      for (int64_t j = 0; j < count; j += kLanes) stored(load(values + j), to + j, count - j);
    if (to == result)
      for (int64_t j = 0; j < count; ++j) *reinterpret_cast<Q*>(p[2] + (i + j) * strides[2]) = result[j];
  }
}

Row find_row(DType x, DType y, DType out) {
  constexpr Row kRows[] = {row<int8_t, int8_t, int8_t>,   row<int8_t, int8_t, uint8_t>,  row<int8_t, uint8_t, int8_t>,
                           row<int8_t, uint8_t, uint8_t>, row<uint8_t, int8_t, int8_t>,  row<uint8_t, int8_t, uint8_t>,
                           row<uint8_t, uint8_t, int8_t>, row<uint8_t, uint8_t, uint8_t>};
  int index = 0;
  for (const DType dtype : {x, y, out}) {
    if (dtype != DType::kInt8 && dtype != DType::kUint8)
      fail(kName, "dtype: got ", info(dtype).name, ", need int8 or uint8");
    index = index * 2 + (dtype == DType::kUint8);
  }
  return kRows[index];
}

int32_t zero_of(const char* what, int64_t value, DType dtype) {
  const int64_t low = dtype == DType::kInt8 ? -128 : 0;
  if (value < low || value > low + 255)
    fail(kName, what, ": got ", value, ", need what ", info(dtype).name, " can hold");
  return static_cast<int32_t>(value);
}

Prepared prepare(const Call& call) {
  check_broadcast(kName, call, 2, 2);
  const auto& attrs = call.attributes<QuantizedAddAttrs>();
  auto state = std::make_shared<State>();
  State& s = *state;
  const DType x = call.inputs[0].dtype, y = call.inputs[1].dtype, out = call.outputs[0].dtype;
  s.row = find_row(x, y, out);
  s.whole = make_loop(call, 2, -1, {});
  s.scales[0] = static_cast<float>(attrs.x_scale);
  s.scales[1] = static_cast<float>(attrs.y_scale);
  s.zeros[0] = zero_of("x_zero", attrs.x_zero, x);
  s.zeros[1] = zero_of("y_zero", attrs.y_zero, y);
  const auto scale = static_cast<float>(attrs.output_scale);
  if (!(scale > 0) || std::isinf(scale))
    fail(kName, "output_scale: got ", attrs.output_scale, ", need a positive number");
  s.output_scale = scale;
  s.zero = static_cast<float>(zero_of("output_zero", attrs.output_zero, out));
  const Epilogue& epilogue = attrs.epilogue;
  if (epilogue.count < 0 || epilogue.count > 4) fail(kName, "epilogue: got ", epilogue.count, " slots, need 0 to 4");
  for (; s.num_slots < epilogue.count; ++s.num_slots) {
    const EpilogueSlot& slot = epilogue.slots[s.num_slots];
    if (slot.operand != -1) fail(kName, "epilogue: got a slot with operand ", slot.operand, ", need unary slots");
    s.slots[s.num_slots] = {find_row_function(call.string(slot.kind)), static_cast<float>(slot.alpha),
                            static_cast<float>(slot.beta)};
  }
  return state;
}

void run(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const State& s = call.state<State>();
  if (covers(call, axis, range))
    walk(s.whole, call, s.row, &s);
  else
    walk(make_loop(call, 2, axis, range), call, s.row, &s);
}

int64_t cost(const Call& call) { return call.outputs[0].size() / 8 + 50; }

const Kernel kTable[] = {
    {
        .name = kName,
        .dtypes = "8b,8b->8b",
        .attrs = "x_scale:f x_zero:i y_scale:f y_zero:i output_scale:f output_zero:i epilogue:E",
        .attrs_bytes = sizeof(QuantizedAddAttrs),
        .accepts = "strided",
        .prepare = prepare,
        .cuts = cut_every_axis,
        .needs = broadcast_needs,
        .cost = cost,
        .run = run,
    },
};

std::span<const Kernel> quantized_add_kernels() { return kTable; }

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(quantized_add_kernels);
std::span<const Kernel> quantized_add_table() { return HWY_DYNAMIC_DISPATCH(quantized_add_kernels)(); }
}  // namespace hexane::cpu
#endif
