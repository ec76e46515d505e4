// quantized_mean: the mean of 8-bit integers over some axes as a real number, rounded to 8 bits again. Sums are
// integers, so their order does not matter. The integers may come as int32 sums. `count`: the number of integers of
// each result.
//
// running_sum: [1, H, W, C] -> [1, H, 1, C], row r has the sums over all columns of rows 0 to r. A run of running_sum
// reads the row before its range from the output. So a mean over an image needs only one row of sums and one row of the
// image in memory.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/quantized/quantized_mean.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/quantized/quantize-inl.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "cpu/operand.h"
#include "cpu/reduce/reduce.h"
#include "cpu/region.h"
#include "cpu/tables.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

constexpr const char* kMean = "quantized_mean";
constexpr const char* kSum = "running_sum";
constexpr int64_t kColumns = 512;
constexpr int64_t kMostTerms = std::numeric_limits<int32_t>::max() / 255;  // number of bytes whose sum fits in int32

struct QuantizedMeanAttrs {
  IntList axes;
  int64_t keep_dims, count;
  double x_scale;
  int64_t x_zero;
  double output_scale;
  int64_t output_zero;
};

struct State {
  double scale;   // Scale of a sum: x_scale / count.
  int64_t zeros;  // The zero point's part of a sum: count times the zero point.
  float output_scale, zero, low, high;
};

// Adds the first n columns of x, `stride` bytes apart, to sums.
template <class T, class Sum>
HWY_INLINE void add_row(const std::byte* x, int64_t stride, int64_t n, Sum* sums) {
  if constexpr (sizeof(T) == 1) {
    if (stride == 1) {
      int64_t i = 0;
      for (const T* from = reinterpret_cast<const T*>(x); i + kLanes <= n; i += kLanes)
        hn::StoreU(hn::Add(hn::LoadU(DI(), sums + i), load_integers(from + i, kLanes)), DI(), sums + i);
      for (; i < n; ++i) sums[i] += *reinterpret_cast<const T*>(x + i);
      return;
    }
  }
  for (int64_t i = 0; i < n; ++i) sums[i] += *reinterpret_cast<const T*>(x + i * stride);
}

template <class Q>
Q stored(const State& s, int64_t sum) {
  const auto mean = static_cast<float>(static_cast<double>(sum - s.zeros) * s.scale);
  const float steps = std::nearbyint(mean / s.output_scale) + s.zero;
  return static_cast<Q>(std::min(s.high, std::max(s.low, steps)));
}

template <class T, class Q>
void run_mean(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  using Sum = std::conditional_t<sizeof(T) == 1, int32_t, int64_t>;
  const auto& attributes = call.attributes<QuantizedMeanAttrs>();
  const auto& s = call.state<State>();
  const ReduceLoop loop = make_reduce_loop(call, attributes.axes, attributes.keep_dims, axis, range);
  const std::byte* in = call.inputs[0].data + loop.in;
  std::byte* out = call.outputs[0].data + loop.out;
  const ReduceLoop::Axis one{1, 0, 0};
  const ReduceLoop::Axis& row = loop.inner_kept ? loop.kept[loop.num_kept - 1] : one;
  for_each(loop.kept, loop.num_kept - loop.inner_kept, 0, 0, [&](int64_t from, int64_t to) HWY_ATTR {
    for (int64_t c = 0; c < row.extent; c += kColumns) {
      const int64_t n = std::min(kColumns, row.extent - c);
      alignas(64) Sum sums[kColumns];
      std::fill_n(sums, n, 0);
      for_each(loop.reduced, loop.num_reduced, 0, 0,
               [&](int64_t offset, int64_t) HWY_ATTR { add_row<T>(in + from + c * row.in + offset, row.in, n, sums); });
      for (int64_t i = 0; i < n; ++i) *reinterpret_cast<Q*>(out + to + (c + i) * row.out) = stored<Q>(s, sums[i]);
    }
  });
}

template <class T, class Q>
Prepared prepare_mean(const Call& call) {
  const auto& attrs = call.attributes<QuantizedMeanAttrs>();
  check_reduce(kMean, call, attrs.axes, attrs.keep_dims);
  const Tensor &in = call.inputs[0], &out = call.outputs[0];
  const auto check_zero = [](const char* what, int64_t zero, int64_t low) {
    if (zero < low || zero > low + 255) fail(kMean, what, ": got ", zero, ", need ", low, " to ", low + 255);
    return zero;
  };
  if (attrs.count < 1 || attrs.count > kMostTerms) fail(kMean, "count: got ", attrs.count, ", need 1 to ", kMostTerms);
  if (sizeof(T) == 1 && out.size() > 0 && attrs.count != in.size() / out.size())
    fail(kMean, "count: got ", attrs.count, ", need ", in.size() / out.size(), " elements for each result");
  const auto x_scale = static_cast<float>(attrs.x_scale), scale = static_cast<float>(attrs.output_scale);
  for (const float each : {x_scale, scale})
    if (!(each > 0) || std::isinf(each)) fail(kMean, "scale: got ", each, ", need a positive number");
  const int64_t lowest = std::is_signed_v<Q> ? -128 : 0;
  // The dtype of the summed elements is unknown, so zero points of int8 and uint8 are accepted.
  const bool either = sizeof(T) != 1;
  const int64_t x_zero = either && attrs.x_zero >= 0
                             ? check_zero("x_zero", attrs.x_zero, 0)
                             : check_zero("x_zero", attrs.x_zero, either || std::is_signed_v<T> ? -128 : 0);
  const int64_t zero = check_zero("output_zero", attrs.output_zero, lowest);
  return std::make_shared<State>(State{static_cast<double>(x_scale) / static_cast<double>(attrs.count),
                                       attrs.count * x_zero, scale, static_cast<float>(zero),
                                       static_cast<float>(lowest), static_cast<float>(lowest + 255)});
}

Box mean_needs(const Call& call, int, const Box& out) {
  const auto& attributes = call.attributes<QuantizedMeanAttrs>();
  return kept_box(call.inputs[0], attributes.axes, attributes.keep_dims, out);
}

template <class T, class Q>
constexpr Kernel mean(const char* dtypes) {
  return {
      .name = kMean,
      .dtypes = dtypes,
      .attrs = "axes:L keep_dims:i count:i x_scale:f x_zero:i output_scale:f output_zero:i",
      .attrs_bytes = sizeof(QuantizedMeanAttrs),
      .accepts = "strided",
      .prepare = prepare_mean<T, Q>,
      .cuts = cut_every_axis,
      .needs = mean_needs,
      .cost = reduce_cost<40>,
      .run = run_mean<T, Q>,
  };
}

// ---- sums so far ----

Prepared prepare_sum(const Call& call) {
  if (call.inputs.size() != 1 || call.outputs.size() != 1)
    fail(kSum, "operands: got ", call.inputs.size(), " inputs and ", call.outputs.size(), " outputs, need 1 and 1");
  const Tensor &in = call.inputs[0], &out = call.outputs[0];
  check_operand(kSum, "input", in);
  check_written(kSum, "output", out);
  const bool fits = in.rank == 4 && out.rank == 4 && in.shape[0] == 1 && out.shape[0] == 1 &&
                    in.shape[1] == out.shape[1] && out.shape[2] == 1 && in.shape[3] == out.shape[3];
  if (!fits)
    fail(kSum, "shapes: got ", shape_text(in), " and ", shape_text(out), ", need (1, H, W, C) and (1, H, 1, C)");
  if (in.shape[1] > 0 && in.shape[2] > kMostTerms / in.shape[1])
    fail(kSum, "input: got ", shape_text(in), ", need at most ", kMostTerms, " elements of a channel");
  return nullptr;
}

template <class T>
void run_sum(const Call& call, int, Range range, std::byte*, const std::byte*) {
  const Tensor &in = call.inputs[0], &out = call.outputs[0];
  const int64_t channels = in.shape[3];
  const int64_t step = out.strides[3];
  const auto kept = [&](int64_t row) { return out.data + out.kept_row(row) * out.strides[1]; };
  std::byte* before = range.begin ? kept(range.begin - 1) : nullptr;
  for (int64_t row = range.begin; row < range.end; ++row) {
    std::byte* now = kept(row);
    for (int64_t c = 0; c < channels; c += kColumns) {
      const int64_t n = std::min(kColumns, channels - c);
      alignas(64) int32_t sums[kColumns];
      if (!before)
        std::fill_n(sums, n, 0);
      else if (step == sizeof(int32_t))
        std::memcpy(sums, before + c * step, static_cast<size_t>(n * step));
      else
        for (int64_t i = 0; i < n; ++i) sums[i] = *reinterpret_cast<int32_t*>(before + (c + i) * step);
      const std::byte* from = in.data + row * in.strides[1] + c * in.strides[3];
      for (int64_t x = 0; x < in.shape[2]; ++x) add_row<T>(from + x * in.strides[2], in.strides[3], n, sums);
      if (step == sizeof(int32_t))
        std::memcpy(now + c * step, sums, static_cast<size_t>(n * step));
      else
        for (int64_t i = 0; i < n; ++i) *reinterpret_cast<int32_t*>(now + (c + i) * step) = sums[i];
    }
    before = now;
  }
}

void sum_cuts(const Call& call, Cuts& cuts) { cuts.add(1, call.outputs[0].shape[1]); }

Box sum_needs(const Call& call, int, const Box& out) {
  Box box = whole(call.inputs[0]);
  box[1] = out[1];
  box[3] = out[3];
  return box;
}

template <class T>
constexpr Kernel sum(const char* dtypes) {
  return {
      .name = kSum,
      .dtypes = dtypes,
      .accepts = "strided",
      .prepare = prepare_sum,
      .cuts = sum_cuts,
      .needs = sum_needs,
      .cost = reduce_cost<40>,
      .run = run_sum<T>,
      .in_order = true,
  };
}

const Kernel kTable[] = {
    mean<int8_t, int8_t>("int8->int8"),   mean<int8_t, uint8_t>("int8->uint8"),
    mean<uint8_t, int8_t>("uint8->int8"), mean<uint8_t, uint8_t>("uint8->uint8"),
    mean<int32_t, int8_t>("int32->int8"), mean<int32_t, uint8_t>("int32->uint8"),
    sum<int8_t>("int8->int32"),           sum<uint8_t>("uint8->int32"),
};

std::span<const Kernel> quantized_mean_kernels() { return kTable; }

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(quantized_mean_kernels);
std::span<const Kernel> quantized_mean_table() { return HWY_DYNAMIC_DISPATCH(quantized_mean_kernels)(); }
}  // namespace hexane::cpu
#endif
