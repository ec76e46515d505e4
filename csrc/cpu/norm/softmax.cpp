// softmax and log_softmax along one axis, in fp32: subtract the maximum, exponentials, divide by their sum.
// engine/engine_softmax-inl.h has the engine's arithmetic.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/norm/softmax.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/engine/engine_softmax-inl.h"

#include <algorithm>
#include <memory>

#include "cpu/elementwise/elementwise.h"
#include "cpu/operand.h"
#include "cpu/reduce/reduce.h"
#include "cpu/region.h"
#include "cpu/tables.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

template <bool kLog, class T>
void softmax_row(const T* x, T* y, int64_t n, float* scratch) {
  const float top = row_max(x, n);
  if constexpr (kLog) {
    const V shift = set(top), log_sum = log_of_sum(x, n, shift);
    map(x, y, n, [&](V v) HWY_ATTR { return hn::Sub(hn::Sub(v, shift), log_sum); });
  } else {
    float* exps = scratch;
    if constexpr (sizeof(T) == 4) exps = y;
    const V factor = set(1 / exponentials(x, exps, n, top));
    map(exps, y, n, [&](V e) HWY_ATTR { return hn::Mul(e, factor); });
  }
}

void engine_line(const SoftmaxMaps& maps, const std::byte* x, int64_t x_stride, std::byte* y, int64_t y_stride,
                 int64_t n, float* line) {
  gather<engine_half>(x, x_stride, line, n);
  engine_softmax(maps, line, n);
  scatter<engine_half>(line, y, y_stride, n);
}

// Like softmax_row(), for up to kLanes adjacent columns at once. Values of a column are `stride` bytes apart.
template <bool kLog, class T>
void softmax_columns(const std::byte* x, int64_t x_stride, std::byte* y, int64_t y_stride, int64_t n, int64_t columns) {
  const auto at = [&](int64_t i) HWY_ATTR {
    const T* from = reinterpret_cast<const T*>(x + i * x_stride);
    return columns == kLanes ? load(from) : load_part(from, columns);
  };
  V top = set(-kInfinity), sum = set(0);
  for (int64_t i = 0; i < n; ++i) top = hn::Max(top, at(i));
  LogSum log_sum{sum, sum};
  const int64_t block = sum_block(n);
  for (int64_t i = 0; i < n;) {
    V part = set(0);
    LogSum log_part{part, part};
    for (const int64_t end = std::min(n, i + block); i < end; ++i) {
      const V shifted = hn::Sub(at(i), top);
      if constexpr (kLog)
        log_part.add(shifted);
      else
        part = hn::Add(part, weight_of_negative(shifted));
    }
    sum = hn::Add(sum, part);
    log_sum.add(log_part);
  }
  const V last = kLog ? log_sum.value() : hn::Div(set(1), sum);
  for (int64_t i = 0; i < n; ++i) {
    const V shifted = hn::Sub(at(i), top);
    const V result = kLog ? hn::Sub(shifted, last) : hn::Mul(weight_of_negative(shifted), last);
    T* to = reinterpret_cast<T*>(y + i * y_stride);
    if (columns == kLanes)
      store(result, to);
    else
      store_part(result, to, columns);
  }
}

int softmax_axis(const Call& call) {
  const int64_t axis = *static_cast<const int64_t*>(call.attrs);
  return static_cast<int>(axis < 0 ? axis + call.inputs[0].rank : axis);
}

template <bool kLog, class T>
Prepared prepare_softmax(const Call& call) {
  const char* name = kLog ? "log_softmax" : "softmax";
  if (call.inputs.size() != 1 || call.outputs.size() != 1)
    fail(name, "operands: got ", call.inputs.size(), " inputs and ", call.outputs.size(), " outputs, need 1 and 1");
  check_operand(name, "input", call.inputs[0]);
  check_written(name, "output", call.outputs[0]);
  check_same_shape(name, call.outputs[0], call.inputs[0]);
  check_axis(name, *static_cast<const int64_t*>(call.attrs), call.inputs[0].rank);
  for (const Tensor* tensor : {&call.inputs[0], &call.outputs[0]}) {
    const int last = tensor->rank - 1;
    if (tensor->size() > 0 && tensor->shape[last] > 1 && tensor->strides[last] != item_bytes(*tensor))
      fail(name, "innermost stride: got ", tensor->strides[last], ", need ", item_bytes(*tensor));
  }
  if constexpr (!kIsEngine<T>) return nullptr;
  return std::make_shared<SoftmaxMaps>(softmax_maps(call.numerics));
}

void softmax_cuts(const Call& call, Cuts& cuts) {
  const Tensor& out = call.outputs[0];
  for (int axis = 0; axis < out.rank; ++axis)
    if (out.shape[axis] > 1 && axis != softmax_axis(call)) cuts.add(axis, out.shape[axis]);
}

Box softmax_needs(const Call& call, int, const Box& out) { return all_along(call.inputs[0], softmax_axis(call), out); }

int64_t softmax_cost(const Call& call) {
  const int64_t size = call.outputs[0].size(), row = call.outputs[0].shape[softmax_axis(call)];
  return 20 + size * 3 / 10 + size / std::max<int64_t>(row, 1) * 8;
}

int64_t softmax_scratch(const Call& call) { return call.inputs[0].shape[softmax_axis(call)] * 4; }

template <bool kLog, class T>
void run_softmax(const Call& call, int cut, Range range, std::byte* scratch, const std::byte*) {
  const Tensor &in = call.inputs[0], &out = call.outputs[0];
  const int line = softmax_axis(call), last = in.rank - 1;
  const int64_t n = in.shape[line];
  if (n == 0) return;
  bool in_rows = true;  // all axes inside the softmax axis have extent 1
  for (int i = line + 1; i <= last; ++i) in_rows &= in.shape[i] == 1;
  ReduceLoop::Axis others[8] = {};
  int num_others = 0;
  int64_t from = 0, to = 0, columns = 1;
  for (int i = 0; i < in.rank; ++i) {
    const int64_t begin = i == cut ? range.begin : 0, end = i == cut ? range.end : in.shape[i];
    if (i == line) continue;
    from += begin * in.strides[i], to += begin * out.strides[i];
    if (i == last && !in_rows)
      columns = end - begin;
    else
      others[num_others++] = {end - begin, in.strides[i], out.strides[i]};
  }
  for_each(others, num_others, from, to, [&](int64_t at, int64_t place) HWY_ATTR {
    const std::byte* x = in.data + at;
    std::byte* y = out.data + place;
    if constexpr (kIsEngine<T>) {
      for (int64_t c = 0; c < columns; ++c)
        engine_line(call.state<SoftmaxMaps>(), x + c * sizeof(T), in.strides[line], y + c * sizeof(T),
                    out.strides[line], n, reinterpret_cast<float*>(scratch));
      return;
    }
    if (in_rows && (n == 1 || (in.strides[line] == sizeof(T) && out.strides[line] == sizeof(T))))
      return softmax_row<kLog>(reinterpret_cast<const T*>(x), reinterpret_cast<T*>(y), n,
                               reinterpret_cast<float*>(scratch));
    for (int64_t c = 0; c < columns; c += kLanes)
      softmax_columns<kLog, T>(x + c * sizeof(T), in.strides[line], y + c * sizeof(T), out.strides[line], n,
                               std::min(kLanes, columns - c));
  });
}

template <bool kLog, class T>
constexpr Kernel softmax_kernel() {
  return {
      .name = kLog ? "log_softmax" : "softmax",
      .dtypes = sizeof(T) == 4 ? "fp32->fp32" : "fp16->fp16",
      .family = kFamily<T>,
      .attrs = "axis:i",
      .attrs_bytes = 8,
      .accepts = "rows",
      .prepare = prepare_softmax<kLog, T>,
      .cuts = softmax_cuts,
      .needs = softmax_needs,
      .cost = softmax_cost,
      .scratch = kLog ? nullptr : softmax_scratch,
      .run = run_softmax<kLog, T>,
  };
}

const Kernel kTable[] = {softmax_kernel<false, float>(), softmax_kernel<false, float16_t>(),
                         softmax_kernel<false, engine_half>(), softmax_kernel<true, float>(),
                         softmax_kernel<true, float16_t>()};

std::span<const Kernel> softmax_kernels() { return kTable; }

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(softmax_kernels);
std::span<const Kernel> softmax_table() { return HWY_DYNAMIC_DISPATCH(softmax_kernels)(); }
}  // namespace hexane::cpu
#endif
