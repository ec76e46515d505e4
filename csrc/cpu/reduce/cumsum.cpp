// cumsum: running sums of floats are in fp64, because lines may be long; integers wrap. In the engine's arithmetic each
// result is also rounded once, since the engine's order of rounding is not known for this op.
#include "cpu/reduce/scalar.h"

#include <algorithm>

namespace hexane::cpu {
namespace {

struct CumsumAttributes {
  int64_t axis;
  int64_t exclusive;
  int64_t reverse;
};

Prepared prepare_cumsum(const Call& call) {
  if (call.inputs.size() != 1 || call.outputs.size() != 1)
    fail("cumsum", "operands: got ", call.inputs.size(), " inputs and ", call.outputs.size(), " outputs, need 1 and 1");
  check_operand("cumsum", "input", call.inputs[0]);
  check_written("cumsum", "output", call.outputs[0]);
  check_same_shape("cumsum", call.outputs[0], call.inputs[0]);
  check_axis("cumsum", call.attributes<CumsumAttributes>().axis, call.inputs[0].rank);
  return nullptr;
}

int cumsum_axis(const Call& call) {
  const int64_t axis = call.attributes<CumsumAttributes>().axis;
  return static_cast<int>(axis < 0 ? axis + call.inputs[0].rank : axis);
}

void cut_other_axes(const Call& call, Cuts& cuts) {
  const Tensor& out = call.outputs[0];
  for (int axis = 0; axis < out.rank; ++axis)
    if (out.shape[axis] > 1 && axis != cumsum_axis(call)) cuts.add(axis, out.shape[axis]);
}

Box cumsum_needs(const Call& call, int, const Box& out) {
  const int axis = cumsum_axis(call);
  Box box = all_along(call.inputs[0], axis, out);
  (call.attributes<CumsumAttributes>().reverse ? box[axis].begin = out[axis].begin : box[axis].end = out[axis].end);
  return box;
}

template <class T>
using Running = std::conditional_t<std::is_integral_v<T>, T, double>;

// Adds a value to the running sum and returns the output.
template <class T>
T cumsum_step(Running<T>& total, T value, bool exclusive) {
  const Running<T> before = total;
  if constexpr (std::is_integral_v<T>)
    total = wrapped_sum(total, value);
  else
    total += number(value);
  const Running<T> result = exclusive ? before : total;
  if constexpr (std::is_same_v<T, fp16>)
    return to_fp16(static_cast<float>(result));
  else if constexpr (kIsEngine<T>)
    return to_engine_half(result);
  else
    return static_cast<T>(result);
}

// Processes up to kColumns adjacent lines at once.
template <class T>
void cumsum_columns(const std::byte* in, std::byte* out, int64_t columns, int64_t n, int64_t in_step, int64_t out_step,
                    bool exclusive) {
  using Carry = decltype(number(T{}));
  Running<T> totals[kColumns] = {};
  Carry wide[kColumns];
  for (int64_t i = 0; i < n; ++i) {
    const Carry* x = numbers(reinterpret_cast<const T*>(in + i * in_step), columns, wide);
    T* to = reinterpret_cast<T*>(out + i * out_step);
    if constexpr (std::is_same_v<T, Carry>) {
      for (int64_t j = 0; j < columns; ++j) to[j] = cumsum_step<T>(totals[j], x[j], exclusive);
    } else {
      for (int64_t j = 0; j < columns; ++j) wide[j] = cumsum_step<Carry>(totals[j], x[j], exclusive);
      convert({wide, static_cast<size_t>(columns)}, {to, static_cast<size_t>(columns)});
    }
  }
}

template <class T>
void run_cumsum(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const auto& attributes = call.attributes<CumsumAttributes>();
  const Tensor &in = call.inputs[0], &out = call.outputs[0];
  const int line = cumsum_axis(call);
  ReduceLoop::Axis others[8] = {};
  int num_others = 0;
  int64_t from = 0, to = 0;
  for (int i = 0; i < in.rank; ++i) {
    if (i == line) continue;
    const bool cut = i == axis;
    others[num_others++] = {cut ? range.end - range.begin : in.shape[i], in.strides[i], out.strides[i]};
    if (cut) from += range.begin * in.strides[i], to += range.begin * out.strides[i];
  }
  const int64_t n = in.shape[line];
  int64_t in_step = in.strides[line], out_step = out.strides[line];
  if (attributes.reverse && n) {
    from += (n - 1) * in_step, to += (n - 1) * out_step;
    in_step = -in_step, out_step = -out_step;
  }
  const bool exclusive = attributes.exclusive;
  if constexpr (!kIsEngine<T>) {
    const auto* inner = num_others ? &others[num_others - 1] : nullptr;
    if (inner && line != in.rank - 1 && inner->in == sizeof(T) && inner->out == sizeof(T)) {
      return for_each(others, num_others - 1, from, to, [&](int64_t at, int64_t place) {
        for (int64_t i = 0; i < inner->extent; i += kColumns)
          cumsum_columns<T>(in.data + at + i * inner->in, out.data + place + i * inner->out,
                            std::min(kColumns, inner->extent - i), n, in_step, out_step, exclusive);
      });
    }
  }
  for_each(others, num_others, from, to, [&](int64_t at, int64_t place) {
    Running<T> total = 0;
    for (int64_t i = 0; i < n; ++i)
      *reinterpret_cast<T*>(out.data + place + i * out_step) =
          cumsum_step<T>(total, *reinterpret_cast<const T*>(in.data + at + i * in_step), exclusive);
  });
}

template <class T>
constexpr Kernel cumsum_kernel(const char* dtypes) {
  return {
      .name = "cumsum",
      .dtypes = dtypes,
      .family = kFamily<T>,
      .attrs = "axis:i exclusive:i reverse:i",
      .attrs_bytes = sizeof(CumsumAttributes),
      .accepts = "strided",
      .prepare = prepare_cumsum,
      .cuts = cut_other_axes,
      .needs = cumsum_needs,
      .cost = reduce_cost<500>,
      .run = run_cumsum<T>,
  };
}

constexpr Kernel kTable[] = {
    cumsum_kernel<double>("fp64->fp64"),      cumsum_kernel<float>("fp32->fp32"),
    cumsum_kernel<fp16>("fp16->fp16"),        cumsum_kernel<int8_t>("int8->int8"),
    cumsum_kernel<uint8_t>("uint8->uint8"),   cumsum_kernel<int16_t>("int16->int16"),
    cumsum_kernel<int32_t>("int32->int32"),   cumsum_kernel<int64_t>("int64->int64"),
    cumsum_kernel<engine_half>("fp16->fp16"),
};

}  // namespace

std::span<const Kernel> cumsum_table() { return kTable; }

}  // namespace hexane::cpu
