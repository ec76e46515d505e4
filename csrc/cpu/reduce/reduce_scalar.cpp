// Reductions of integers, argmax and argmin, and running sums: what needs no vector code of its own.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "core/fp16.h"
#include "cpu/elementwise/elementwise.h"
#include "cpu/operand.h"
#include "cpu/reduce/reduce.h"
#include "cpu/region.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

// ---- integers: wrap as in NumPy; a mean is truncated ----

struct reduce_sum_op {
  static constexpr const char* kName = "reduce_sum";
  template <class T>
  static constexpr T kIdentity = 0;
  template <class T>
  static T step(T a, T b) {
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
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

// A mean is of a sum of 64 bits; every other result wraps as its dtype does.
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

// So many columns together as the innermost axis is kept and dense.
constexpr int64_t kColumns = 256;

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

// ---- argmax, argmin: the first of equals; the first NaN, if there is one ----

struct ArgAttributes {
  int64_t axis;
  int64_t keep_dims;

  IntList axes() const { return {1, {axis}}; }
};

template <class T>
auto number(T x) {
  if constexpr (std::is_same_v<T, fp16>)
    return to_float(x);
  else
    return x;
}

struct Largest {
  static constexpr const char* kName = "reduce_argmax";
  template <class X>
  static bool holds(X best, X next) {
    return best >= next;
  }
};
struct Smallest {
  static constexpr const char* kName = "reduce_argmin";
  template <class X>
  static bool holds(X best, X next) {
    return best <= next;
  }
};

// Whether `next`, later in the line, takes the place of `best`.
template <class Op, class X>
bool replaces(X next, X best) {
  return !Op::holds(best, next) & (best == best);
}

template <class Op>
Prepared prepare_arg(const Call& call) {
  const auto& attributes = call.attributes<ArgAttributes>();
  check_reduce(Op::kName, call, attributes.axes(), attributes.keep_dims);
  const Tensor& in = call.inputs[0];
  if (in.shape[check_axis(Op::kName, attributes.axis, in.rank)] == 0 && call.outputs[0].size() != 0)
    fail(Op::kName, "shape: got ", shape_text(in), ", need at least one element along axis ", attributes.axis);
  return nullptr;
}

// Lines that lie side by side, up to kColumns together: the best of each, and where it is.
template <class T>
struct Best {
  using Index = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;  // as wide as what is compared, for vectors
  decltype(number(T{})) values[kColumns];
  Index at[kColumns];
};

// A row as numbers, in `wide` if they are not as they lie.
template <class T>
const T* numbers(const T* row, int64_t, T*) {
  return row;
}
const float* numbers(const fp16* row, int64_t n, float* wide) {
  convert({row, static_cast<size_t>(n)}, {wide, static_cast<size_t>(n)});
  return wide;
}

template <class Op, class T>
void arg_columns(const std::byte* in, int64_t step, int64_t n, int64_t columns, Best<T>& best) {
  decltype(number(T{})) wide[kColumns];
  std::copy_n(numbers(reinterpret_cast<const T*>(in), columns, wide), columns, best.values);
  std::fill_n(best.at, columns, 0);
  for (int64_t i = 1; i < n; ++i) {
    const T* row = reinterpret_cast<const T*>(in + i * step);
    const auto* x = numbers(row, columns, wide);
    for (int64_t j = 0; j < columns; ++j) {
      const auto next = x[j], old = best.values[j];
      const bool taken = replaces<Op>(next, old);
      best.values[j] = taken ? next : old;
      best.at[j] = taken ? static_cast<typename Best<T>::Index>(i) : best.at[j];
    }
  }
}

// A dense line as one of rows of kWidth: their columns, then the rest of it.
template <class Op, class T>
int64_t arg_line(const T* x, int64_t n) {
  constexpr int64_t kWidth = 32;
  const int64_t rows = n / kWidth;
  auto value = number(x[0]);
  int64_t index = 0;
  if (rows > 1) {
    Best<T> best;
    arg_columns<Op>(reinterpret_cast<const std::byte*>(x), kWidth * sizeof(T), rows, kWidth, best);
    value = best.values[0], index = best.at[0] * kWidth;
    for (int64_t j = 1; j < kWidth; ++j) {
      const auto next = best.values[j];
      const int64_t at = best.at[j] * kWidth + j;
      const bool equal = next == value || (next != next && value != value);
      if (equal ? at < index : replaces<Op>(next, value)) value = next, index = at;
    }
  }
  for (int64_t i = rows > 1 ? rows * kWidth : 1; i < n; ++i)
    if (replaces<Op>(number(x[i]), value)) value = number(x[i]), index = i;
  return index;
}

constexpr int64_t kMostRows = int64_t{1} << 31;  // that an index of 32 bits counts

template <class Op, class T, class Index>
void run_arg(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const auto& attributes = call.attributes<ArgAttributes>();
  const ReduceLoop loop = make_reduce_loop(call, attributes.axes(), attributes.keep_dims, axis, range);
  const std::byte* in = call.inputs[0].data + loop.in;
  std::byte* out = call.outputs[0].data + loop.out;
  const ReduceLoop::Axis line = loop.num_reduced ? loop.reduced[0] : ReduceLoop::Axis{1, 0, 0};
  if (loop.inner_kept && loop.kept[loop.num_kept - 1].in == sizeof(T) && line.extent < kMostRows) {
    const auto& inner = loop.kept[loop.num_kept - 1];
    return for_each(loop.kept, loop.num_kept - 1, 0, 0, [&](int64_t from, int64_t to) {
      Best<T> best;
      for (int64_t i = 0; i < inner.extent; i += kColumns) {
        const int64_t columns = std::min(kColumns, inner.extent - i);
        arg_columns<Op>(in + from + i * inner.in, line.in, line.extent, columns, best);
        for (int64_t j = 0; j < columns; ++j)
          *reinterpret_cast<Index*>(out + to + (i + j) * inner.out) = static_cast<Index>(best.at[j]);
      }
    });
  }
  for_each(loop.kept, loop.num_kept, 0, 0, [&](int64_t from, int64_t to) {
    const std::byte* x = in + from;
    int64_t index = 0;
    if (line.in == sizeof(T) && line.extent < kMostRows) {
      index = arg_line<Op>(reinterpret_cast<const T*>(x), line.extent);
    } else {
      auto best = number(*reinterpret_cast<const T*>(x));
      for (int64_t i = 1; i < line.extent && best == best; ++i) {
        const auto next = number(*reinterpret_cast<const T*>(x + i * line.in));
        if (replaces<Op>(next, best)) best = next, index = i;
      }
    }
    *reinterpret_cast<Index*>(out + to) = static_cast<Index>(index);
  });
}

Box arg_needs(const Call& call, int, const Box& out) {
  const auto& attributes = call.attributes<ArgAttributes>();
  return kept_box(call.inputs[0], attributes.axes(), attributes.keep_dims, out);
}

template <class Op, class T, class Index>
constexpr Kernel arg_kernel(const char* dtypes) {
  return {
      .name = Op::kName,
      .dtypes = dtypes,
      .attrs = "axis:i keep_dims:i",
      .attrs_bytes = sizeof(ArgAttributes),
      .accepts = "strided",
      .prepare = prepare_arg<Op>,
      .cuts = cut_every_axis,
      .needs = arg_needs,
      .cost = reduce_cost<900>,
      .run = run_arg<Op, T, Index>,
  };
}

// ---- cumsum: floats carried in fp32, integers wrap ----

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

// One step: the sum so far, and what the output shows of it.
template <class T, class Carry>
T cumsum_step(Carry& total, T value, bool exclusive) {
  const Carry before = total, x = number(value);
  if constexpr (std::is_integral_v<T>)
    total = reduce_sum_op::step(total, x);
  else
    total += x;
  const Carry result = exclusive ? before : total;
  if constexpr (std::is_same_v<T, fp16>)
    return to_fp16(result);
  else
    return result;
}

// Lines that lie side by side, up to kColumns together.
template <class T>
void cumsum_columns(const std::byte* in, std::byte* out, int64_t columns, int64_t n, int64_t in_step, int64_t out_step,
                    bool exclusive) {
  using Carry = decltype(number(T{}));
  Carry totals[kColumns] = {}, wide[kColumns];
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
  ReduceLoop::Axis others[8];
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
  const auto* inner = num_others ? &others[num_others - 1] : nullptr;
  if (inner && line != in.rank - 1 && inner->in == sizeof(T) && inner->out == sizeof(T)) {
    return for_each(others, num_others - 1, from, to, [&](int64_t at, int64_t place) {
      for (int64_t i = 0; i < inner->extent; i += kColumns)
        cumsum_columns<T>(in.data + at + i * inner->in, out.data + place + i * inner->out,
                          std::min(kColumns, inner->extent - i), n, in_step, out_step, exclusive);
    });
  }
  for_each(others, num_others, from, to, [&](int64_t at, int64_t place) {
    decltype(number(T{})) total = 0;
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

#define HEXANE_REDUCE(op)                                                                               \
  reduce_kernel<op##_op, int8_t>("int8->int8"), reduce_kernel<op##_op, uint8_t>("uint8->uint8"),        \
      reduce_kernel<op##_op, int16_t>("int16->int16"), reduce_kernel<op##_op, int32_t>("int32->int32"), \
      reduce_kernel<op##_op, int64_t>("int64->int64"), reduce_kernel<op##_op, uint64_t>("uint64->uint64")
#define HEXANE_ARG_DTYPE(Op, T, name) \
  arg_kernel<Op, T, int32_t>(name "->int32"), arg_kernel<Op, T, int64_t>(name "->int64")
#define HEXANE_ARG(Op)                                                                                           \
  HEXANE_ARG_DTYPE(Op, double, "fp64"), HEXANE_ARG_DTYPE(Op, float, "fp32"), HEXANE_ARG_DTYPE(Op, fp16, "fp16"), \
      HEXANE_ARG_DTYPE(Op, int8_t, "int8"), HEXANE_ARG_DTYPE(Op, uint8_t, "uint8"),                              \
      HEXANE_ARG_DTYPE(Op, int16_t, "int16"), HEXANE_ARG_DTYPE(Op, int32_t, "int32"),                            \
      HEXANE_ARG_DTYPE(Op, int64_t, "int64")

constexpr Kernel kTable[] = {
    HEXANE_REDUCE(reduce_sum),
    HEXANE_REDUCE(reduce_mean),
    HEXANE_REDUCE(reduce_prod),
    HEXANE_REDUCE(reduce_max),
    HEXANE_REDUCE(reduce_min),
    HEXANE_ARG(Largest),
    HEXANE_ARG(Smallest),
    cumsum_kernel<double>("fp64->fp64"),
    cumsum_kernel<float>("fp32->fp32"),
    cumsum_kernel<fp16>("fp16->fp16"),
    cumsum_kernel<int8_t>("int8->int8"),
    cumsum_kernel<uint8_t>("uint8->uint8"),
    cumsum_kernel<int16_t>("int16->int16"),
    cumsum_kernel<int32_t>("int32->int32"),
    cumsum_kernel<int64_t>("int64->int64"),
};
#undef HEXANE_REDUCE
#undef HEXANE_ARG
#undef HEXANE_ARG_DTYPE

}  // namespace

std::span<const Kernel> reduce_scalar_table() { return kTable; }

}  // namespace hexane::cpu
