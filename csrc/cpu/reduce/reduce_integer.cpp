// Reductions of integers: they wrap as in NumPy; a mean is truncated.
#include <algorithm>
#include <limits>

#include "cpu/reduce/scalar.h"

namespace hexane::cpu {
namespace {

struct reduce_sum_op {
  static constexpr const char* kName = "reduce_sum";
  template <class T>
  static constexpr T kIdentity = 0;
  template <class T>
  static T step(T a, T b) {
    return wrapped_sum(a, b);
  }
};
struct reduce_mean_op : reduce_sum_op {
  static constexpr const char* kName = "reduce_mean";
};
struct reduce_prod_op {
  static constexpr const char* kName = "reduce_prod";
  template <class T>
  static constexpr T kIdentity = 1;
  template <class T>
  static T step(T a, T b) {
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  }
};
struct reduce_max_op {
  static constexpr const char* kName = "reduce_max";
  template <class T>
  static constexpr T kIdentity = std::numeric_limits<T>::min();
  template <class T>
  static T step(T a, T b) {
    return a < b ? b : a;
  }
};
struct reduce_min_op {
  static constexpr const char* kName = "reduce_min";
  template <class T>
  static constexpr T kIdentity = std::numeric_limits<T>::max();
  template <class T>
  static T step(T a, T b) {
    return b < a ? b : a;
  }
};

template <class Op>
Prepared prepare_reduce(const Call& call) {
  const auto& attributes = call.attributes<ReduceAttributes>();
  check_reduce(Op::kName, call, attributes.axes, attributes.keep_dims);
  return nullptr;
}

// The dtype of the accumulator. A mean sums in 64 bits; other reductions wrap in the element's dtype.
template <class Op, class T>
using Carry = std::conditional_t<std::is_same_v<Op, reduce_mean_op>, int64_t, T>;

template <class Op, class T>
T finished(Carry<Op, T> total, int64_t count) {
  if constexpr (std::is_same_v<Op, reduce_mean_op>) total = count ? total / count : 0;
  return static_cast<T>(total);
}

template <class Op, class T>
Carry<Op, T> reduce_line(Carry<Op, T> total, const std::byte* x, int64_t stride, int64_t n) {
  const auto loop = [&](int64_t step) __attribute__((always_inline)) {
    for (int64_t i = 0; i < n; ++i)
      total = Op::template step<Carry<Op, T>>(total, *reinterpret_cast<const T*>(x + i * step));
  };
  if (stride == sizeof(T))
    loop(sizeof(T));
  else
    loop(stride);
  return total;
}

template <class Op, class T>
void reduce_columns(const ReduceLoop& loop, const std::byte* in, int64_t columns, std::byte* out, int64_t stride) {
  Carry<Op, T> totals[kColumns];
  std::fill_n(totals, columns, Op::template kIdentity<Carry<Op, T>>);
  for_each(loop.reduced, loop.num_reduced, 0, 0, [&](int64_t at, int64_t) {
    const T* x = reinterpret_cast<const T*>(in + at);
    for (int64_t i = 0; i < columns; ++i) totals[i] = Op::template step<Carry<Op, T>>(totals[i], x[i]);
  });
  for (int64_t i = 0; i < columns; ++i)
    *reinterpret_cast<T*>(out + i * stride) = finished<Op, T>(totals[i], loop.count);
}

template <class Op, class T>
void run_reduce(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const auto& attributes = call.attributes<ReduceAttributes>();
  const ReduceLoop loop = make_reduce_loop(call, attributes.axes, attributes.keep_dims, axis, range);
  const std::byte* in = call.inputs[0].data + loop.in;
  std::byte* out = call.outputs[0].data + loop.out;
  if (loop.inner_kept && loop.kept[loop.num_kept - 1].in == sizeof(T)) {
    const auto& inner = loop.kept[loop.num_kept - 1];
    return for_each(loop.kept, loop.num_kept - 1, 0, 0, [&](int64_t from, int64_t to) {
      for (int64_t i = 0; i < inner.extent; i += kColumns)
        reduce_columns<Op, T>(loop, in + from + i * inner.in, std::min(kColumns, inner.extent - i),
                              out + to + i * inner.out, inner.out);
    });
  }
  const int outer = std::max(loop.num_reduced - 1, 0);
  const ReduceLoop::Axis line = loop.num_reduced ? loop.reduced[outer] : ReduceLoop::Axis{1, 0, 0};
  for_each(loop.kept, loop.num_kept, 0, 0, [&](int64_t from, int64_t to) {
    auto total = Op::template kIdentity<Carry<Op, T>>;
    for_each(loop.reduced, outer, from, 0,
             [&](int64_t at, int64_t) { total = reduce_line<Op, T>(total, in + at, line.in, line.extent); });
    *reinterpret_cast<T*>(out + to) = finished<Op, T>(total, loop.count);
  });
}

template <class Op, class T>
constexpr Kernel reduce_kernel(const char* dtypes) {
  return {
      .name = Op::kName,
      .dtypes = dtypes,
      .attrs = "axes:L keep_dims:i",
      .attrs_bytes = sizeof(ReduceAttributes),
      .accepts = "strided",
      .prepare = prepare_reduce<Op>,
      .cuts = cut_every_axis,
      .needs = reduce_needs,
      .cost = reduce_cost<100>,
      .run = run_reduce<Op, T>,
  };
}

#define HEXANE_REDUCE(op)                                                                               \
  reduce_kernel<op##_op, int8_t>("int8->int8"), reduce_kernel<op##_op, uint8_t>("uint8->uint8"),        \
      reduce_kernel<op##_op, int16_t>("int16->int16"), reduce_kernel<op##_op, int32_t>("int32->int32"), \
      reduce_kernel<op##_op, int64_t>("int64->int64"), reduce_kernel<op##_op, uint64_t>("uint64->uint64")

constexpr Kernel kTable[] = {
    HEXANE_REDUCE(reduce_sum), HEXANE_REDUCE(reduce_mean), HEXANE_REDUCE(reduce_prod),
    HEXANE_REDUCE(reduce_max), HEXANE_REDUCE(reduce_min),
};
#undef HEXANE_REDUCE

}  // namespace

std::span<const Kernel> reduce_integer_table() { return kTable; }

}  // namespace hexane::cpu
