// Reductions of fp32 and fp16, accumulated in fp32 (accumulate-inl.h). The order of additions depends on the shape
// alone.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/reduce/reduce.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "core/instruction_sets.h"
#include "cpu/engine/grouped_sum-inl.h"
#include "cpu/reduce/accumulate-inl.h"
#include "cpu/simd/math-inl.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <type_traits>

#include "cpu/elementwise/elementwise.h"
#include "cpu/operand.h"
#include "cpu/reduce/reduce.h"
#include "cpu/tables.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

// ---- elements ----

// The type of the elements of input and output. It is a run-time argument: code for each type would double the kernels.
enum class Element { kFloat, kHalf, kEngineHalf };

template <class T>
constexpr Element kElement = sizeof(T) == 4 ? Element::kFloat
                             : kIsEngine<T> ? Element::kEngineHalf
                                            : Element::kHalf;

// Converts n values, `stride` bytes apart, to fp32.
HWY_NOINLINE void to_floats(Element element, const std::byte* from, int64_t stride, float* to, int64_t n) {
  if (element == Element::kFloat) return gather<float>(from, stride, to, n);
  if (element == Element::kHalf) return gather<float16_t>(from, stride, to, n);
  gather<engine_half>(from, stride, to, n);
}

HWY_NOINLINE void from_floats(Element element, const float* from, std::byte* to, int64_t stride, int64_t n) {
  if (element == Element::kFloat) return scatter<float>(from, to, stride, n);
  if (element == Element::kHalf) return scatter<float16_t>(from, to, stride, n);
  scatter<engine_half>(from, to, stride, n);
}

// The values that a reduction reads.
struct Values {
  const ReduceLoop& loop;
  Element element;

  // True if values `stride` bytes apart are dense.
  bool are_floats(int64_t stride) const { return element == Element::kFloat && stride == sizeof(float); }
  bool are_halves(int64_t stride) const { return element == Element::kHalf && stride == sizeof(float16_t); }
};

// ---- the innermost axis reduced: rows of values ----

// True if dense halves have loops of their own: for frequent reductions, where one instruction loads a vector of
// halves. Elsewhere halves are converted to fp32 first, which costs time, not code.
template <class R>
constexpr bool kLoadsHalves = (HEXANE_HAS_AVX2 || HEXANE_HAS_NEON) &&
                              (std::is_same_v<R, Sum> || std::is_same_v<R, SumSquare> || std::is_same_v<R, Maximum>);

constexpr int64_t kConverted = 512;  // values converted at once
static_assert(kConverted % kBlock == 0);

template <class R, class T>
HWY_INLINE void add_to_ways(const R& reduce, V (&ways)[kWays], const T* x, int64_t n) {
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock)
    for (int k = 0; k < kWays; ++k) ways[k] = reduce.step(ways[k], load(x + i + k * kLanes), k);
#pragma GCC unroll 4
  for (int k = 0; k < kWays; ++k, i += kLanes) {  // unrolled, so that `ways` stays in registers
    if (i >= n) break;
    ways[k] = reduce.step(ways[k], n - i >= kLanes ? load(x + i) : load_part(x + i, n - i, R::kFill), k);
  }
}

// Adds `steps` steps of a row. If n ends in the last step, the other values of that step are missing.
template <class R, class T>
HWY_NOINLINE void add_steps(Accumulator<R>& to, const T* x, int64_t n, int64_t steps) {
  while (steps > 0) {
    const int64_t run = to.run(steps), count = std::min(n, run * kBlock);
    V part[kWays];
    for (int k = 0; k < kWays; ++k) part[k] = to.part[k];
    add_to_ways(to.reduce, part, x, count);
    for (int k = 0; k < kWays; ++k) to.part[k] = part[k];
    to.count(run);
    x += count;
    n -= count;
    steps -= run;
  }
}

// Adds a row. The tail after whole steps counts as one more step, even if it is empty.
template <class R>
void add_row(Accumulator<R>& to, const Values& values, const std::byte* x, int64_t stride, int64_t n) {
  if (values.are_floats(stride)) return add_steps(to, reinterpret_cast<const float*>(x), n, n / kBlock + 1);
  if constexpr (kLoadsHalves<R>)
    if (values.are_halves(stride)) return add_steps(to, reinterpret_cast<const float16_t*>(x), n, n / kBlock + 1);
  alignas(64) float converted[kConverted];
  for (; n >= kConverted; n -= kConverted, x += kConverted * stride) {
    to_floats(values.element, x, stride, converted, kConverted);
    add_steps(to, converted, kConverted, kConverted / kBlock);
  }
  to_floats(values.element, x, stride, converted, n);
  add_steps(to, converted, n, n / kBlock + 1);
}

template <class R>
HWY_INLINE float across(const R& reduce, const V* ways) {
  V all = reduce.merge(reduce.merge(ways[0], ways[1]), reduce.merge(ways[2], ways[3]));
#if HEXANE_HAS_AVX2  // vectors of more than 4 lanes
  all = reduce.merge(all, hn::ConcatLowerUpper(D(), all, all));
  if (kLanes == 16) all = reduce.merge(all, hn::SwapAdjacentBlocks(all));
#endif
  all = reduce.merge(all, hn::Shuffle1032(all));
  return hn::GetLane(reduce.merge(all, hn::Shuffle2301(all)));
}

// Reduces a row of less than kSteps steps.
template <class R, class T>
HWY_INLINE float reduce_short(const R& reduce, const T* x, int64_t n) {
  V ways[kWays] = {set(R::kIdentity), set(R::kIdentity), set(R::kIdentity), set(R::kIdentity)};
  add_to_ways(reduce, ways, x, n);
  return across(reduce, ways);
}

template <class R>
float reduce_values(const R& reduce, const Values& values, const std::byte* in) {
  const ReduceLoop& loop = values.loop;
  if (loop.num_reduced == 1 && loop.reduced[0].extent < kSteps * kBlock) {
    const int64_t stride = loop.reduced[0].in, n = loop.reduced[0].extent;
    if (values.are_floats(stride)) return reduce_short(reduce, reinterpret_cast<const float*>(in), n);
    if constexpr (kLoadsHalves<R>)
      if (values.are_halves(stride)) return reduce_short(reduce, reinterpret_cast<const float16_t*>(in), n);
    if (n <= kConverted) {
      alignas(64) float converted[kConverted];
      to_floats(values.element, in, stride, converted, n);
      return reduce_short(reduce, converted, n);
    }
  }
  Accumulator<R> accumulator(reduce);
  if (loop.num_reduced == 0) {
    add_row(accumulator, values, in, sizeof(float), 1);
  } else {
    const auto& inner = loop.reduced[loop.num_reduced - 1];
    for_each(loop.reduced, loop.num_reduced - 1, 0, 0, [&](int64_t offset, int64_t) HWY_ATTR {
      add_row(accumulator, values, in + offset, inner.in, inner.extent);
    });
  }
  accumulator.finish();
  return across(reduce, accumulator.total);
}

// ---- the innermost axis kept: up to kBlock columns at once ----

// Adds kBlock dense columns of `run` rows, which are `stride` bytes apart.
template <class T, class R>
HWY_INLINE void add_block(Accumulator<R>& to, const std::byte* row, int64_t stride, int64_t run) {
  V part[kWays];
  for (int k = 0; k < kWays; ++k) part[k] = to.part[k];
  for (int64_t i = 0; i < run; ++i, row += stride)
    for (int k = 0; k < kWays; ++k)
      part[k] = to.reduce.step(part[k], load(reinterpret_cast<const T*>(row) + k * kLanes), k);
  for (int k = 0; k < kWays; ++k) to.part[k] = part[k];
}

template <class R>
void reduce_columns(const R& reduce, const Values& values, const std::byte* in, int64_t stride, int64_t columns,
                    float* results) {
  const ReduceLoop& loop = values.loop;
  Accumulator<R> accumulator(reduce);
  const ReduceLoop::Axis one{1, 0, 0};
  const auto& inner = loop.num_reduced ? loop.reduced[loop.num_reduced - 1] : one;
  const int ways = static_cast<int>((columns + kLanes - 1) / kLanes);
  const bool are_floats = values.are_floats(stride);
  alignas(64) float converted[kBlock] = {};
  for_each(loop.reduced, std::max(loop.num_reduced - 1, 0), 0, 0, [&](int64_t offset, int64_t) HWY_ATTR {
    const std::byte* row = in + offset;
    for (int64_t left = inner.extent; left > 0;) {
      const int64_t run = accumulator.run(left);
      if (columns == kBlock && are_floats) {
        add_block<float>(accumulator, row, inner.in, run);
      } else if (kLoadsHalves<R> && columns == kBlock && values.are_halves(stride)) {
        if constexpr (kLoadsHalves<R>) add_block<float16_t>(accumulator, row, inner.in, run);
      } else {
        for (int64_t i = 0; i < run; ++i) {
          const std::byte* x = row + i * inner.in;
          if (!are_floats) {
            to_floats(values.element, x, stride, converted, columns);
            x = reinterpret_cast<const std::byte*>(converted);
          }
          for (int k = 0; k < ways; ++k)
            accumulator.part[k] = reduce.step(
                accumulator.part[k],
                load_columns<float>(x + k * kLanes * sizeof(float), sizeof(float), columns - k * kLanes), k);
        }
      }
      row += run * inner.in;
      accumulator.count(run);
      left -= run;
    }
  });
  accumulator.finish();
  for (int k = 0; k < kWays; ++k) store(accumulator.total[k], results + k * kLanes);
}

// ---- operations: what to accumulate, and what becomes of it ----

struct SumExp : Sum {
  static constexpr float kFill = -kInfinity;
  V shift[kWays];
  HWY_INLINE SumExp() {}  // an implicit constructor would not be compiled for this instruction set
  HWY_INLINE V step(V total, V x, int way) const { return hn::Add(total, exp(hn::Sub(x, shift[way]))); }
};

// The final operation on the accumulated values. Finish is a run-time argument, so that reductions with equal
// accumulation share code.
enum class Finish { kNone, kMean, kRoot, kLog };

float finished(Finish finish, float x, int64_t count) {
  switch (finish) {
    case Finish::kMean:
      return x / static_cast<float>(count);
    case Finish::kRoot:
      return std::sqrt(x);
    case Finish::kLog:
      return std::log(x);
    default:
      return x;
  }
}

template <class R>
struct Accumulated {
  static float value(const Values& values, const std::byte* in) { return reduce_values(R(), values, in); }
  static void columns(const Values& values, const std::byte* in, int64_t stride, int64_t n, float* results) {
    reduce_columns(R(), values, in, stride, n, results);
  }
};

template <class R, Finish finish>
struct Plain : Accumulated<R> {
  static constexpr Finish kFinish = finish;
};

// Computes log(sum(e^(x - top))) + top.
struct LogSumExp {
  static constexpr Finish kFinish = Finish::kNone;
  static float shift_of(float top) { return std::isfinite(top) ? top : 0; }
  static float value(const Values& values, const std::byte* in) {
    const float shift = shift_of(Accumulated<Maximum>::value(values, in));
    SumExp sum;
    for (V& way : sum.shift) way = set(shift);
    return std::log(reduce_values(sum, values, in)) + shift;
  }
  static void columns(const Values& values, const std::byte* in, int64_t stride, int64_t n, float* results) {
    alignas(64) float shift[kBlock];
    Accumulated<Maximum>::columns(values, in, stride, n, shift);
    for (float& top : shift) top = shift_of(top);
    SumExp sum;
    for (int k = 0; k < kWays; ++k) sum.shift[k] = load(shift + k * kLanes);
    reduce_columns(sum, values, in, stride, n, results);
    for (int64_t i = 0; i < n; ++i) results[i] = std::log(results[i]) + shift[i];
  }
};

// The sum in the engine's arithmetic, before it is rounded.
HWY_NOINLINE double grouped_sum(const Values& values, const std::byte* in) {
  const ReduceLoop& loop = values.loop;
  GroupedSum sum;
  const ReduceLoop::Axis one{1, 0, 0};
  const auto& inner = loop.num_reduced ? loop.reduced[loop.num_reduced - 1] : one;
  for_each(loop.reduced, std::max(loop.num_reduced - 1, 0), 0, 0, [&](int64_t offset, int64_t) HWY_ATTR {
    alignas(64) float converted[kConverted];
    for (int64_t i = 0; i < inner.extent; i += kConverted) {
      const int64_t count = std::min(kConverted, inner.extent - i);
      to_floats(values.element, in + offset + i * inner.in, inner.in, converted, count);
      sum.add(converted, count);
    }
  });
  return sum.total();
}

// The sums of n columns, at most kLanes.
HWY_NOINLINE void grouped_sums(const Values& values, const std::byte* in, int64_t stride, int64_t n, double* totals) {
  const ReduceLoop& loop = values.loop;
  GroupedSums sums;
  alignas(64) float converted[kLanes] = {};
  for_each(loop.reduced, loop.num_reduced, 0, 0, [&](int64_t offset, int64_t) HWY_ATTR {
    to_floats(values.element, in + offset, stride, converted, n);
    sums.add(load(converted));
  });
  std::copy_n(sums.totals(), n, totals);
}

// Sum or mean in the engine's arithmetic. The result is rounded to fp16, or kept in fp32 if the layer applies a gain or
// an offset next.
template <bool kMean>
struct Grouped {
  static constexpr Finish kFinish = Finish::kNone;
  static float rounded_total(const Values& values, double total) {
    const double result = kMean ? total / static_cast<double>(values.loop.count) : total;
    return values.element == Element::kEngineHalf ? rounded(result) : static_cast<float>(result);
  }
  static float value(const Values& values, const std::byte* in) {
    return rounded_total(values, grouped_sum(values, in));
  }
  static void columns(const Values& values, const std::byte* in, int64_t stride, int64_t n, float* results) {
    for (int64_t c = 0; c < n; c += kLanes) {
      const int64_t count = std::min(kLanes, n - c);
      double totals[kLanes];
      grouped_sums(values, in + c * stride, stride, count, totals);
      for (int64_t i = 0; i < count; ++i) results[c + i] = rounded_total(values, totals[i]);
    }
  }
};

// ---- the axes that stay ----

// A reduction over the reduced axes: value() for one result, columns() for n results, at most kBlock.
struct Operation {
  float (*value)(const Values& values, const std::byte* in);
  void (*columns)(const Values& values, const std::byte* in, int64_t stride, int64_t n, float* results);
  Finish finish;
};

// Runs any operation, and stores results in the elements of the input.
void reduce_all(const Call& call, int axis, Range range, const Operation& operation, Element element) {
  const auto& attributes = call.attributes<ReduceAttributes>();
  const ReduceLoop loop = make_reduce_loop(call, attributes.axes, attributes.keep_dims, axis, range);
  const Values values{loop, element};
  const bool is_of_engine = element == Element::kEngineHalf;
  const int64_t bytes = element == Element::kFloat ? sizeof(float) : sizeof(float16_t);
  const std::byte* in = call.inputs[0].data + loop.in;
  std::byte* out = call.outputs[0].data + loop.out;
  if (!loop.inner_kept)
    return for_each(loop.kept, loop.num_kept, 0, 0, [&](int64_t from, int64_t to) HWY_ATTR {
      float result = operation.value(values, in + from);
      if (HWY_UNLIKELY(operation.finish != Finish::kNone)) result = finished(operation.finish, result, loop.count);
      if (element == Element::kFloat) return void(std::memcpy(out + to, &result, sizeof(result)));
      if (is_of_engine) result += 0.0f;  // turns -0 into 0: instruction sets order them differently
      from_floats(element, &result, out + to, bytes, 1);
    });
  const auto& inner = loop.kept[loop.num_kept - 1];
  for_each(loop.kept, loop.num_kept - 1, 0, 0, [&](int64_t from, int64_t to) HWY_ATTR {
    for (int64_t c = 0; c < inner.extent; c += kBlock) {
      const int64_t columns = std::min(kBlock, inner.extent - c);
      alignas(64) float results[kBlock];
      operation.columns(values, in + from + c * inner.in, inner.in, columns, results);
      for (int64_t i = 0; i < columns; ++i) {
        results[i] = finished(operation.finish, results[i], loop.count);
        if (is_of_engine) results[i] += 0.0f;
      }
      from_floats(element, results, out + to + c * inner.out, inner.out, columns);
    }
  });
}

template <class Op, class T>
void run_reduce(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  reduce_all(call, axis, range, {Op::value, Op::columns, Op::kFinish}, kElement<T>);
}

#define HEXANE_REDUCE_OP(op, ...)             \
  struct op##_op : __VA_ARGS__ {              \
    static constexpr const char* kName = #op; \
  };
HEXANE_REDUCE_OP(reduce_sum, Plain<Sum, Finish::kNone>)
HEXANE_REDUCE_OP(reduce_mean, Plain<Sum, Finish::kMean>)
HEXANE_REDUCE_OP(reduce_max, Plain<Maximum, Finish::kNone>)
HEXANE_REDUCE_OP(reduce_min, Plain<Minimum, Finish::kNone>)
HEXANE_REDUCE_OP(reduce_prod, Plain<Product, Finish::kNone>)
HEXANE_REDUCE_OP(reduce_sum_square, Plain<SumSquare, Finish::kNone>)
HEXANE_REDUCE_OP(reduce_l1_norm, Plain<SumAbs, Finish::kNone>)
HEXANE_REDUCE_OP(reduce_l2_norm, Plain<SumSquare, Finish::kRoot>)
HEXANE_REDUCE_OP(reduce_log_sum, Plain<Sum, Finish::kLog>)
HEXANE_REDUCE_OP(reduce_log_sum_exp, LogSumExp)
#undef HEXANE_REDUCE_OP

template <class Op>
constexpr bool kIsPlain = !std::is_base_of_v<LogSumExp, Op>;

struct engine_sum_op : Grouped<false> {
  static constexpr const char* kName = "reduce_sum";
};
struct engine_mean_op : Grouped<true> {
  static constexpr const char* kName = "reduce_mean";
};

template <class Op>
constexpr bool kIsGrouped = std::is_base_of_v<Grouped<false>, Op> || std::is_base_of_v<Grouped<true>, Op>;

template <class Op>
Prepared prepare_reduce(const Call& call) {
  const auto& attributes = call.attributes<ReduceAttributes>();
  check_reduce(Op::kName, call, attributes.axes, attributes.keep_dims);
  return nullptr;
}

template <class Op, class T>
constexpr Kernel reduce_kernel() {
  return {
      .name = Op::kName,
      .dtypes = sizeof(T) == 4 ? "fp32->fp32" : "fp16->fp16",
      .family = kIsGrouped<Op> ? "engine" : kFamily<T>,
      .attrs = "axes:L keep_dims:i",
      .attrs_bytes = sizeof(ReduceAttributes),
      .accepts = "strided",
      .prepare = prepare_reduce<Op>,
      .cuts = cut_every_axis,
      .needs = reduce_needs,
      .cost = reduce_cost < kIsPlain<Op> ? 65 : 320 >,
      .run = run_reduce<Op, T>,
  };
}

// ---- the sum of all squares, if an input asks for it ----

// squared_norm: inputs x and optionally `when`. The result equals reduce_sum_square bit for bit, or is 0 if `when` is
// false.
constexpr const char* kSquaredNorm = "squared_norm";

Call of_squares(const Call& call) {
  static constexpr ReduceAttributes kAllAxes{};
  Call made = call;
  made.inputs = call.inputs.first(1);
  made.attrs = &kAllAxes;
  return made;
}

bool is_asked(const Call& call) { return !call.inputs[1].present() || *call.inputs[1].as<uint8_t>(); }

Prepared prepare_squared_norm(const Call& call) {
  check_reduce(kSquaredNorm, of_squares(call), {}, false);
  const Tensor& when = call.inputs[1];
  if (when.present() && (when.rank != 1 || when.shape[0] != 1))
    fail(kSquaredNorm, "when: got the shape ", shape_text(when), ", need (1,)");
  return nullptr;
}

void run_squared_norm(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  if (is_asked(call)) return run_reduce<reduce_sum_square_op, float>(of_squares(call), axis, range, nullptr, nullptr);
  *call.outputs[0].as<float>() = 0;
}

constexpr Kernel squared_norm_kernel() {
  return {
      .name = kSquaredNorm,
      .dtypes = "fp32,bool->fp32",
      .accepts = "strided",
      .prepare = prepare_squared_norm,
      .cost = reduce_cost<65>,
      .run = run_squared_norm,
  };
}

#define HEXANE_REDUCE(op) reduce_kernel<op##_op, float>(), reduce_kernel<op##_op, float16_t>()
const Kernel kTable[] = {
    HEXANE_REDUCE(reduce_sum),
    HEXANE_REDUCE(reduce_mean),
    HEXANE_REDUCE(reduce_max),
    HEXANE_REDUCE(reduce_min),
    HEXANE_REDUCE(reduce_prod),
    HEXANE_REDUCE(reduce_sum_square),
    HEXANE_REDUCE(reduce_l1_norm),
    HEXANE_REDUCE(reduce_l2_norm),
    HEXANE_REDUCE(reduce_log_sum),
    HEXANE_REDUCE(reduce_log_sum_exp),
    reduce_kernel<engine_sum_op, engine_half>(),
    reduce_kernel<engine_mean_op, engine_half>(),
    reduce_kernel<engine_sum_op, float>(),
    reduce_kernel<engine_mean_op, float>(),
    reduce_kernel<reduce_max_op, engine_half>(),
    reduce_kernel<reduce_min_op, engine_half>(),
    squared_norm_kernel(),
};
#undef HEXANE_REDUCE

std::span<const Kernel> reduce_kernels() { return kTable; }

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(reduce_kernels);
std::span<const Kernel> reduce_table() { return HWY_DYNAMIC_DISPATCH(reduce_kernels)(); }
}  // namespace hexane::cpu
#endif
