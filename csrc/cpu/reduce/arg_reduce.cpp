// The kernels argmax and argmin return the first of equal elements, or the first NaN if there is a NaN.
#include "cpu/reduce/scalar.h"

#include <algorithm>

namespace hexane::cpu {
namespace {

struct ArgAttributes {
  int64_t axis;
  int64_t keep_dims;

  IntList axes() const { return {1, {axis}}; }
};

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

// True if `next`, later in the line, replaces `best`.
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

// The best value of each of up to kColumns adjacent lines, and its index.
template <class T>
struct Best {
  using Index = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;  // an index as wide as T lets the loop vectorise
  decltype(number(T{})) values[kColumns];
  Index at[kColumns];
};

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

// Reduces a dense line as if it were a matrix of rows of kWidth: first its columns, then the results and the tail.
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

constexpr int64_t kMostRows = int64_t{1} << 31;  // longest line for an index of 32 bits

// Stores an index as int32 or int64.
void put(std::byte* to, bool is_wide, int64_t index) {
  if (is_wide)
    *reinterpret_cast<int64_t*>(to) = index;
  else
    *reinterpret_cast<int32_t*>(to) = static_cast<int32_t>(index);
}

template <class Op, class T>
void run_arg(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const auto& attributes = call.attributes<ArgAttributes>();
  const ReduceLoop loop = make_reduce_loop(call, attributes.axes(), attributes.keep_dims, axis, range);
  const std::byte* in = call.inputs[0].data + loop.in;
  std::byte* out = call.outputs[0].data + loop.out;
  const bool is_wide = item_bytes(call.outputs[0]) == sizeof(int64_t);
  const ReduceLoop::Axis line = loop.num_reduced ? loop.reduced[0] : ReduceLoop::Axis{1, 0, 0};
  if (loop.inner_kept && loop.kept[loop.num_kept - 1].in == sizeof(T) && line.extent < kMostRows) {
    const auto& inner = loop.kept[loop.num_kept - 1];
    return for_each(loop.kept, loop.num_kept - 1, 0, 0, [&](int64_t from, int64_t to) {
      Best<T> best;
      for (int64_t i = 0; i < inner.extent; i += kColumns) {
        const int64_t columns = std::min(kColumns, inner.extent - i);
        arg_columns<Op>(in + from + i * inner.in, line.in, line.extent, columns, best);
        for (int64_t j = 0; j < columns; ++j) put(out + to + (i + j) * inner.out, is_wide, best.at[j]);
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
    put(out + to, is_wide, index);
  });
}

Box arg_needs(const Call& call, int, const Box& out) {
  const auto& attributes = call.attributes<ArgAttributes>();
  return kept_box(call.inputs[0], attributes.axes(), attributes.keep_dims, out);
}

template <class Op, class T>
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
      .run = run_arg<Op, T>,
  };
}

#define HEXANE_ARG_DTYPE(Op, T, name) arg_kernel<Op, T>(name "->int32"), arg_kernel<Op, T>(name "->int64")
#define HEXANE_ARG(Op)                                                                                           \
  HEXANE_ARG_DTYPE(Op, double, "fp64"), HEXANE_ARG_DTYPE(Op, float, "fp32"), HEXANE_ARG_DTYPE(Op, fp16, "fp16"), \
      HEXANE_ARG_DTYPE(Op, int8_t, "int8"), HEXANE_ARG_DTYPE(Op, uint8_t, "uint8"),                              \
      HEXANE_ARG_DTYPE(Op, int16_t, "int16"), HEXANE_ARG_DTYPE(Op, int32_t, "int32"),                            \
      HEXANE_ARG_DTYPE(Op, int64_t, "int64"), HEXANE_ARG_DTYPE(Op, uint64_t, "uint64")

constexpr Kernel kTable[] = {
    HEXANE_ARG(Largest),
    HEXANE_ARG(Smallest),
};
#undef HEXANE_ARG
#undef HEXANE_ARG_DTYPE

}  // namespace

std::span<const Kernel> arg_reduce_table() { return kTable; }

}  // namespace hexane::cpu
