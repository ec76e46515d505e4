// Sums, products and means of 8-bit integers as TFLite computes them, see q31.h. Products of channels and windows are
// in quantized_conv.cpp and quantized_matmul.cpp, means of windows in pool.cpp.
#include "cpu/quantized/q31.h"

#include <array>
#include <cstring>
#include <limits>
#include <memory>

#include "cpu/elementwise/elementwise.h"
#include "cpu/loop.h"
#include "cpu/reduce/reduce.h"
#include "cpu/region.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

constexpr int kSumShift = 20;                                              // Fraction bits of scaled operands.
constexpr int64_t kMostTerms = std::numeric_limits<int32_t>::max() / 255;  // Most bytes whose sum fits in int32.

struct AddAttrs {
  int64_t x_zero, x_multiplier, x_shift, y_zero, y_multiplier, y_shift, output_multiplier, output_shift;
  int64_t output_zero, low, high;
};

struct MulAttrs {
  int64_t x_zero, y_zero, multiplier, shift, output_zero, low, high;
};

struct MeanAttrs {
  IntList axes;
  int64_t keep_dims, count, x_zero, multiplier, shift, output_zero;
};

int32_t as_number(std::byte bits, DType dtype) {
  return dtype == DType::kInt8 ? static_cast<int8_t>(bits) : static_cast<uint8_t>(bits);
}

// ---- add, mul ----

// Tables x and y map each byte to the number that is added or multiplied.
struct Elementwise {
  Loop whole;
  Row row;
  std::array<int32_t, 256> x, y;
  Multiplier rescaled;
  Q31Output output;
};

template <bool kAdds>
void row(std::byte* const* p, const int64_t* strides, int64_t n, const void* opaque) {
  const auto& s = *static_cast<const Elementwise*>(opaque);
  const auto *x = reinterpret_cast<const uint8_t*>(p[0]), *y = reinterpret_cast<const uint8_t*>(p[1]);
  auto* to = reinterpret_cast<uint8_t*>(p[2]);
  for (int64_t i = 0; i < n; ++i) {
    const int32_t a = s.x[x[i * strides[0]]], b = s.y[y[i * strides[1]]];
    const int32_t total = kAdds ? saturated(int64_t{a} + b) : a * b;
    to[i * strides[2]] = static_cast<uint8_t>(s.output.stored(s.rescaled(total)));
  }
}

std::shared_ptr<Elementwise> prepare_two(const char* kernel, const Call& call) {
  check_broadcast(kernel, call, 2, 2);
  for (const DType dtype : {call.inputs[0].dtype, call.inputs[1].dtype, call.outputs[0].dtype})
    if (dtype != DType::kInt8 && dtype != DType::kUint8)
      fail(kernel, "dtype: got ", info(dtype).name, ", need int8 or uint8");
  auto state = std::make_shared<Elementwise>();
  state->whole = make_loop(call, 2, -1, {});
  return state;
}

template <class F>
void fill_table(std::array<int32_t, 256>& table, DType dtype, int32_t zero, const F& f) {
  for (int i = 0; i < 256; ++i) table[static_cast<size_t>(i)] = f(as_number(static_cast<std::byte>(i), dtype) - zero);
}

Prepared prepare_add(const Call& call) {
  constexpr const char* kName = "q31_add";
  const auto& a = call.attributes<AddAttrs>();
  auto state = prepare_two(kName, call);
  const DType x = call.inputs[0].dtype, y = call.inputs[1].dtype, out = call.outputs[0].dtype;
  const Multiplier first = check_multiplier(kName, "x", a.x_multiplier, a.x_shift),
                   second = check_multiplier(kName, "y", a.y_multiplier, a.y_shift);
  fill_table(state->x, x, check_byte_zero(kName, "x_zero", a.x_zero, x),
             [&](int32_t number) { return first(number * (1 << kSumShift)); });
  fill_table(state->y, y, check_byte_zero(kName, "y_zero", a.y_zero, y),
             [&](int32_t number) { return second(number * (1 << kSumShift)); });
  state->rescaled = check_multiplier(kName, "output", a.output_multiplier, a.output_shift);
  state->output = q31_output(kName, out, a.output_zero, a.low, a.high);
  state->row = row<true>;
  return state;
}

Prepared prepare_mul(const Call& call) {
  constexpr const char* kName = "q31_mul";
  const auto& a = call.attributes<MulAttrs>();
  auto state = prepare_two(kName, call);
  const DType x = call.inputs[0].dtype, y = call.inputs[1].dtype, out = call.outputs[0].dtype;
  const auto itself = [](int32_t number) { return number; };
  fill_table(state->x, x, check_byte_zero(kName, "x_zero", a.x_zero, x), itself);
  fill_table(state->y, y, check_byte_zero(kName, "y_zero", a.y_zero, y), itself);
  state->rescaled = check_multiplier(kName, "output", a.multiplier, a.shift);
  state->output = q31_output(kName, out, a.output_zero, a.low, a.high);
  state->row = row<false>;
  return state;
}

void run_two(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const auto& s = call.state<Elementwise>();
  if (covers(call, axis, range))
    walk(s.whole, call, s.row, &s);
  else
    walk(make_loop(call, 2, axis, range), call, s.row, &s);
}

constexpr Kernel two(const char* name, const char* layout, int64_t bytes, Prepared (*prepare)(const Call&)) {
  return {
      .name = name,
      .dtypes = "8b,8b->8b",
      .attrs = layout,
      .attrs_bytes = bytes,
      .accepts = "strided",
      .prepare = prepare,
      .cuts = cut_every_axis,
      .needs = broadcast_needs,
      .cost = elementwise_cost<2000>,
      .run = run_two,
  };
}

// ---- mean ----

struct Mean {
  int32_t zeros;  // count times the zero point: its part of a sum
  Multiplier rescaled;
  Q31Output output;
};

int32_t number_at(const std::byte* at, DType dtype) {
  if (dtype != DType::kInt32) return as_number(*at, dtype);
  int32_t number;
  std::memcpy(&number, at, 4);
  return number;
}

Prepared prepare_mean(const Call& call) {
  constexpr const char* kName = "q31_mean";
  const auto& a = call.attributes<MeanAttrs>();
  check_reduce(kName, call, a.axes, a.keep_dims);
  const Tensor &in = call.inputs[0], &out = call.outputs[0];
  if (a.count < 1 || a.count > kMostTerms) fail(kName, "count: got ", a.count, ", need 1 to ", kMostTerms);
  const bool sums = in.dtype == DType::kInt32;
  if (!sums && out.size() > 0 && a.count != in.size() / out.size())
    fail(kName, "count: got ", a.count, ", need ", in.size() / out.size(), " elements for each result");
  // int32 sums may come from int8 or uint8, so zero points of both dtypes are accepted.
  const DType grid = sums ? (a.x_zero < 0 ? DType::kInt8 : DType::kUint8) : in.dtype;
  const int32_t zero = check_byte_zero(kName, "x_zero", a.x_zero, grid);
  return std::make_shared<Mean>(Mean{static_cast<int32_t>(a.count * zero),
                                     check_multiplier(kName, "output", a.multiplier, a.shift),
                                     q31_output(kName, out.dtype, a.output_zero, -128, 255)});
}

void run_mean(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const auto& attrs = call.attributes<MeanAttrs>();
  const auto& s = call.state<Mean>();
  const ReduceLoop loop = make_reduce_loop(call, attrs.axes, attrs.keep_dims, axis, range);
  const std::byte* in = call.inputs[0].data + loop.in;
  std::byte* out = call.outputs[0].data + loop.out;
  const DType dtype = call.inputs[0].dtype;
  for_each(loop.kept, loop.num_kept, 0, 0, [&](int64_t from, int64_t to) {
    uint32_t sum = 0;  // unsigned, because the int32 sums of a hostile plan may overflow
    for_each(loop.reduced, loop.num_reduced, 0, 0,
             [&](int64_t offset, int64_t) { sum += static_cast<uint32_t>(number_at(in + from + offset, dtype)); });
    const auto total = static_cast<int32_t>(sum - static_cast<uint32_t>(s.zeros));
    out[to] = static_cast<std::byte>(s.output.stored(s.rescaled(total)));
  });
}

Box mean_needs(const Call& call, int, const Box& out) {
  const auto& attributes = call.attributes<MeanAttrs>();
  return kept_box(call.inputs[0], attributes.axes, attributes.keep_dims, out);
}

constexpr Kernel mean(const char* dtypes) {
  return {
      .name = "q31_mean",
      .dtypes = dtypes,
      .attrs = "axes:L keep_dims:i count:i x_zero:i multiplier:i shift:i output_zero:i",
      .attrs_bytes = sizeof(MeanAttrs),
      .accepts = "strided",
      .prepare = prepare_mean,
      .cuts = cut_every_axis,
      .needs = mean_needs,
      .cost = reduce_cost<500>,
      .run = run_mean,
  };
}

const Kernel kTable[] = {
    two("q31_add",
        "x_zero:i x_multiplier:i x_shift:i y_zero:i y_multiplier:i y_shift:i output_multiplier:i output_shift:i "
        "output_zero:i low:i high:i",
        sizeof(AddAttrs), prepare_add),
    two("q31_mul", "x_zero:i y_zero:i multiplier:i shift:i output_zero:i low:i high:i", sizeof(MulAttrs), prepare_mul),
    mean("8b->int8"),
    mean("8b->uint8"),
    mean("int32->int8"),
    mean("int32->uint8"),
};

}  // namespace

std::span<const Kernel> q31_table() { return kTable; }

}  // namespace hexane::cpu
