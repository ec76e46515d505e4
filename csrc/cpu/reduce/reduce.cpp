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
#include <memory>
#include <type_traits>

#include "cpu/elementwise/elementwise.h"
#include "cpu/operand.h"
#include "cpu/reduce/reduce.h"
#include "cpu/tables.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

// ---- the innermost axis reduced: rows of values ----

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

// Adds a row. The tail after whole steps counts as one more step, even if it is empty.
template <class R, class T>
HWY_NOINLINE void add_row(Accumulator<R>& to, const T* x, int64_t n) {
  for (int64_t left = n / kBlock + 1; left > 0;) {
    const int64_t steps = to.run(left), count = std::min(n, steps * kBlock);
    V part[kWays];
    for (int k = 0; k < kWays; ++k) part[k] = to.part[k];
    add_to_ways(to.reduce, part, x, count);
    for (int k = 0; k < kWays; ++k) to.part[k] = part[k];
    to.count(steps);
    x += count;
    n -= count;
    left -= steps;
  }
}

template <class R, class T>
void add_strided(Accumulator<R>& to, const std::byte* x, int64_t stride, int64_t n) {
  if (stride == sizeof(T)) return add_row(to, reinterpret_cast<const T*>(x), n);
  alignas(64) float chunk[512];
  for (int64_t i = 0; i < n; i += 512) {
    const int64_t count = std::min<int64_t>(512, n - i);
    gather<T>(x + i * stride, stride, chunk, count);
    add_row(to, chunk, count);
  }
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

template <class T, class R>
float reduce_values(const R& reduce, const ReduceLoop& loop, const std::byte* in) {
  if (loop.num_reduced == 1 && loop.reduced[0].in == sizeof(T) && loop.reduced[0].extent < kSteps * kBlock) {
    V ways[kWays] = {set(R::kIdentity), set(R::kIdentity), set(R::kIdentity), set(R::kIdentity)};
    add_to_ways(reduce, ways, reinterpret_cast<const T*>(in), loop.reduced[0].extent);
    return across(reduce, ways);
  }
  Accumulator<R> accumulator(reduce);
  if (loop.num_reduced == 0) {
    add_strided<R, T>(accumulator, in, sizeof(T), 1);
  } else {
    const auto& inner = loop.reduced[loop.num_reduced - 1];
    for_each(loop.reduced, loop.num_reduced - 1, 0, 0, [&](int64_t offset, int64_t) HWY_ATTR {
      add_strided<R, T>(accumulator, in + offset, inner.in, inner.extent);
    });
  }
  accumulator.finish();
  return across(reduce, accumulator.total);
}

// ---- the innermost axis kept: up to kBlock columns at once ----

template <class T, class R>
void reduce_columns(const R& reduce, const ReduceLoop& loop, const std::byte* in, int64_t stride, int64_t columns,
                    float* results) {
  Accumulator<R> accumulator(reduce);
  const ReduceLoop::Axis one{1, 0, 0};
  const auto& inner = loop.num_reduced ? loop.reduced[loop.num_reduced - 1] : one;
  const int ways = static_cast<int>((columns + kLanes - 1) / kLanes);
  for_each(loop.reduced, std::max(loop.num_reduced - 1, 0), 0, 0, [&](int64_t offset, int64_t) HWY_ATTR {
    const std::byte* row = in + offset;
    for (int64_t left = inner.extent; left > 0;) {
      const int64_t run = accumulator.run(left);
      if (stride == sizeof(T) && columns == kBlock) {
        V part[kWays];
        for (int k = 0; k < kWays; ++k) part[k] = accumulator.part[k];
        for (int64_t i = 0; i < run; ++i, row += inner.in)
          for (int k = 0; k < kWays; ++k)
            part[k] = reduce.step(part[k], load(reinterpret_cast<const T*>(row) + k * kLanes), k);
        for (int k = 0; k < kWays; ++k) accumulator.part[k] = part[k];
      } else {
        for (int64_t i = 0; i < run; ++i, row += inner.in)
          for (int k = 0; k < ways; ++k)
            accumulator.part[k] = reduce.step(
                accumulator.part[k], load_columns<T>(row + k * kLanes * stride, stride, columns - k * kLanes), k);
      }
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
  using Reduce = R;
  template <class T>
  static float value(const ReduceLoop& loop, const std::byte* in) {
    return reduce_values<T>(R(), loop, in);
  }
  template <class T>
  static void columns(const ReduceLoop& loop, const std::byte* in, int64_t stride, int64_t n, float* results) {
    reduce_columns<T>(R(), loop, in, stride, n, results);
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
  template <class T>
  static float value(const ReduceLoop& loop, const std::byte* in) {
    const float shift = shift_of(Accumulated<Maximum>::value<T>(loop, in));
    SumExp sum;
    for (V& way : sum.shift) way = set(shift);
    return std::log(reduce_values<T>(sum, loop, in)) + shift;
  }
  template <class T>
  static void columns(const ReduceLoop& loop, const std::byte* in, int64_t stride, int64_t n, float* results) {
    alignas(64) float shift[kBlock];
    Accumulated<Maximum>::columns<T>(loop, in, stride, n, shift);
    for (float& top : shift) top = shift_of(top);
    SumExp sum;
    for (int k = 0; k < kWays; ++k) sum.shift[k] = load(shift + k * kLanes);
    reduce_columns<T>(sum, loop, in, stride, n, results);
    for (int64_t i = 0; i < n; ++i) results[i] = std::log(results[i]) + shift[i];
  }
};

// Sum or mean in the engine's arithmetic. The result is rounded to fp16, or kept in fp32 if the layer applies a gain or
// an offset next.
template <bool kMean>
struct Grouped {
  static constexpr Finish kFinish = Finish::kNone;
  template <class T>
  static float rounded_total(const ReduceLoop& loop, double total) {
    const double result = kMean ? total / static_cast<double>(loop.count) : total;
    return kIsEngine<T> ? rounded(result) : static_cast<float>(result);
  }
  template <class T>
  static float value(const ReduceLoop& loop, const std::byte* in) {
    GroupedSum sum;
    const ReduceLoop::Axis one{1, 0, 0};
    const auto& inner = loop.num_reduced ? loop.reduced[loop.num_reduced - 1] : one;
    for_each(loop.reduced, std::max(loop.num_reduced - 1, 0), 0, 0, [&](int64_t offset, int64_t) HWY_ATTR {
      alignas(64) float chunk[kChunk];
      for (int64_t i = 0; i < inner.extent; i += kChunk) {
        const int64_t count = std::min(kChunk, inner.extent - i);
        gather<T>(in + offset + i * inner.in, inner.in, chunk, count);
        sum.add(chunk, count);
      }
    });
    return rounded_total<T>(loop, sum.total());
  }
  template <class T>
  static void columns(const ReduceLoop& loop, const std::byte* in, int64_t stride, int64_t n, float* results) {
    for (int64_t c = 0; c < n; c += kLanes) {
      GroupedSums sums;
      for_each(loop.reduced, loop.num_reduced, 0, 0, [&](int64_t offset, int64_t) HWY_ATTR {
        sums.add(load_columns<T>(in + offset + c * stride, stride, n - c));
      });
      const double* totals = sums.totals();
      for (int64_t i = 0; i < std::min(kLanes, n - c); ++i) results[c + i] = rounded_total<T>(loop, totals[i]);
    }
  }
};

// ---- the axes that stay ----

// A reduction over the reduced axes: value() for one result, columns() for n results, at most kBlock.
struct Operation {
  float (*value)(const ReduceLoop& loop, const std::byte* in);
  void (*columns)(const ReduceLoop& loop, const std::byte* in, int64_t stride, int64_t n, float* results);
  Finish finish;
};

// Runs any operation and stores results as Out.
template <class Out, bool kOfEngine>
void reduce_all(const Call& call, int axis, Range range, const Operation& operation) {
  const auto& attributes = call.attributes<ReduceAttributes>();
  const ReduceLoop loop = make_reduce_loop(call, attributes.axes, attributes.keep_dims, axis, range);
  const std::byte* in = call.inputs[0].data + loop.in;
  std::byte* out = call.outputs[0].data + loop.out;
  if (!loop.inner_kept)
    return for_each(loop.kept, loop.num_kept, 0, 0, [&](int64_t from, int64_t to) HWY_ATTR {
      float result = operation.value(loop, in + from);
      if (HWY_UNLIKELY(operation.finish != Finish::kNone)) result = finished(operation.finish, result, loop.count);
      if (kOfEngine) result += 0.0f;  // turns -0 into 0: instruction sets order them differently
      scatter<Out>(&result, out + to, sizeof(Out), 1);
    });
  const auto& inner = loop.kept[loop.num_kept - 1];
  for_each(loop.kept, loop.num_kept - 1, 0, 0, [&](int64_t from, int64_t to) HWY_ATTR {
    for (int64_t c = 0; c < inner.extent; c += kBlock) {
      const int64_t columns = std::min(kBlock, inner.extent - c);
      alignas(64) float results[kBlock];
      operation.columns(loop, in + from + c * inner.in, inner.in, columns, results);
      for (int64_t i = 0; i < columns; ++i) {
        results[i] = finished(operation.finish, results[i], loop.count);
        if (kOfEngine) results[i] += 0.0f;
      }
      scatter<Out>(results, out + to + c * inner.out, inner.out, columns);
    }
  });
}

template <class Op, class T>
void run_reduce(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  reduce_all<T, kIsEngine<T>>(call, axis, range, {Op::template value<T>, Op::template columns<T>, Op::kFinish});
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
