// Reductions of integers, argmax and argmin, and running sums: what needs no vector code of its own.
#include <cmath>
#include <limits>
#include <type_traits>

#include "core/fp16.h"
#include "cpu/elementwise.h"
#include "cpu/operand.h"
#include "cpu/reduce.h"
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

// Sums are carried in 64 bits, which a mean needs and a sum drops.
template <class Op, class T>
void run_reduce(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  using Carry = std::conditional_t<std::is_base_of_v<reduce_sum_op, Op>, int64_t, T>;
  const auto& attributes = call.attributes<ReduceAttributes>();
  const ReduceLoop loop = make_reduce_loop(call, attributes.axes, attributes.keep_dims, axis, range);
  const std::byte* in = call.inputs[0].data + loop.in;
  std::byte* out = call.outputs[0].data + loop.out;
  for_each(loop.kept, loop.num_kept, 0, 0, [&](int64_t from, int64_t to) {
    Carry total = Op::template kIdentity<Carry>;
    for_each(loop.reduced, loop.num_reduced, from, 0, [&](int64_t at, int64_t) {
      total = Op::template step<Carry>(total, *reinterpret_cast<const T*>(in + at));
    });
    if constexpr (std::is_same_v<Op, reduce_mean_op>) total = loop.count ? total / loop.count : 0;
    *reinterpret_cast<T*>(out + to) = static_cast<T>(total);
  });
}

template <class Op, class T>
constexpr Kernel reduce_kernel(const char* dtypes) {
  return {Op::kName,
          dtypes,
          "ieee",
          "axes:L keep_dims:i",
          sizeof(ReduceAttributes),
          "strided",
          prepare_reduce<Op>,
          cut_every_axis,
          reduce_needs,
          reduce_cost,
          nullptr,
          nullptr,
          nullptr,
          run_reduce<Op, T>};
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
  static bool better(X a, X b) {
    return a > b;
  }
};
struct Smallest {
  static constexpr const char* kName = "reduce_argmin";
  template <class X>
  static bool better(X a, X b) {
    return a < b;
  }
};

template <class Op>
Prepared prepare_arg(const Call& call) {
  const auto& attributes = call.attributes<ArgAttributes>();
  check_reduce(Op::kName, call, attributes.axes(), attributes.keep_dims);
  const Tensor& in = call.inputs[0];
  if (in.shape[check_axis(Op::kName, attributes.axis, in.rank)] == 0 && call.outputs[0].size() != 0)
    fail(Op::kName, "shape: got ", shape_text(in), ", need at least one element along axis ", attributes.axis);
  return nullptr;
}

template <class Op, class T, class Index>
void run_arg(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const auto& attributes = call.attributes<ArgAttributes>();
  const ReduceLoop loop = make_reduce_loop(call, attributes.axes(), attributes.keep_dims, axis, range);
  const std::byte* in = call.inputs[0].data + loop.in;
  std::byte* out = call.outputs[0].data + loop.out;
  const ReduceLoop::Axis line = loop.num_reduced ? loop.reduced[0] : ReduceLoop::Axis{1, 0, 0};
  for_each(loop.kept, loop.num_kept, 0, 0, [&](int64_t from, int64_t to) {
    auto best = number(*reinterpret_cast<const T*>(in + from));
    int64_t index = 0;
    for (int64_t i = 1; i < line.extent && best == best; ++i) {
      const auto x = number(*reinterpret_cast<const T*>(in + from + i * line.in));
      if (Op::better(x, best) || x != x) best = x, index = i;
    }
    *reinterpret_cast<Index*>(out + to) = static_cast<Index>(index);
  });
}

template <class Op, class T, class Index>
constexpr Kernel arg_kernel(const char* dtypes) {
  return {Op::kName, dtypes,          "ieee",         "axis:i keep_dims:i", sizeof(ArgAttributes),
          "strided", prepare_arg<Op>, cut_every_axis, reduce_needs,         reduce_cost,
          nullptr,   nullptr,         nullptr,        run_arg<Op, T, Index>};
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

Range cumsum_needs(const Call& call, int, int axis, Range out) {
  return axis == cumsum_axis(call) ? Range{0, call.inputs[0].shape[axis]} : out;
}

template <class T>
void run_cumsum(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  using Carry = decltype(number(T{}));
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
  for_each(others, num_others, from, to, [&](int64_t at, int64_t place) {
    Carry total = 0;
    for (int64_t i = 0; i < n; ++i) {
      const Carry before = total, x = number(*reinterpret_cast<const T*>(in.data + at + i * in_step));
      if constexpr (std::is_integral_v<T>)
        total = reduce_sum_op::step(total, x);
      else
        total += x;
      const Carry result = attributes.exclusive ? before : total;
      T* slot = reinterpret_cast<T*>(out.data + place + i * out_step);
      if constexpr (std::is_same_v<T, fp16>)
        *slot = to_fp16(result);
      else
        *slot = result;
    }
  });
}

template <class T>
constexpr Kernel cumsum_kernel(const char* dtypes) {
  return {"cumsum",
          dtypes,
          "ieee",
          "axis:i exclusive:i reverse:i",
          sizeof(CumsumAttributes),
          "strided",
          prepare_cumsum,
          cut_other_axes,
          cumsum_needs,
          reduce_cost,
          nullptr,
          nullptr,
          nullptr,
          run_cumsum<T>};
}

#define HEXANE_REDUCE(op)                                                                               \
  reduce_kernel<op##_op, int8_t>("int8->int8"), reduce_kernel<op##_op, uint8_t>("uint8->uint8"),        \
      reduce_kernel<op##_op, int16_t>("int16->int16"), reduce_kernel<op##_op, int32_t>("int32->int32"), \
      reduce_kernel<op##_op, int64_t>("int64->int64")
#define HEXANE_ARG_DTYPE(Op, T, name) \
  arg_kernel<Op, T, int32_t>(name "->int32"), arg_kernel<Op, T, int64_t>(name "->int64")
#define HEXANE_ARG(Op)                                                                                           \
  HEXANE_ARG_DTYPE(Op, float, "fp32"), HEXANE_ARG_DTYPE(Op, fp16, "fp16"), HEXANE_ARG_DTYPE(Op, int8_t, "int8"), \
      HEXANE_ARG_DTYPE(Op, uint8_t, "uint8"), HEXANE_ARG_DTYPE(Op, int16_t, "int16"),                            \
      HEXANE_ARG_DTYPE(Op, int32_t, "int32"), HEXANE_ARG_DTYPE(Op, int64_t, "int64")

constexpr Kernel kTable[] = {
    HEXANE_REDUCE(reduce_sum),
    HEXANE_REDUCE(reduce_mean),
    HEXANE_REDUCE(reduce_prod),
    HEXANE_REDUCE(reduce_max),
    HEXANE_REDUCE(reduce_min),
    HEXANE_ARG(Largest),
    HEXANE_ARG(Smallest),
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
