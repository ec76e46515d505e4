// Unary operations on fp32 and fp16. An op is one line of the list below: its name, the picoseconds of an element, how
// many attributes it has (alpha, beta), and the expression of x. The line defines the kernels and the row function for
// epilogues.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/elementwise/elementwise_unary.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/simd/math-inl.h"

#include <algorithm>
#include <memory>

#include "cpu/elementwise/elementwise.h"
#include "cpu/loop.h"
#include "cpu/tables.h"

#define HEXANE_UNARY_OPS(OP)                                                                                           \
  OP(abs, 85, 0, hn::Abs(x))                                                                                           \
  OP(neg, 85, 0, hn::Neg(x))                                                                                           \
  OP(ceil, 85, 0, hn::Ceil(x))                                                                                         \
  OP(floor, 85, 0, hn::Floor(x))                                                                                       \
  OP(round, 85, 0, hn::Round(x))                                                                                       \
  OP(sign, 105, 0, hn::IfThenElse(hn::Gt(hn::Abs(x), zero), hn::CopySign(one, x), x))                                  \
  OP(sqrt, 170, 0, hn::Sqrt(x))                                                                                        \
  OP(rsqrt, 180, 0, hn::Div(one, hn::Sqrt(x)))                                                                         \
  OP(inverse, 105, 0, hn::Div(one, x))                                                                                 \
  OP(square, 85, 0, hn::Mul(x, x))                                                                                     \
  OP(exp, 165, 0, exp(x))                                                                                              \
  OP(exp2, 165, 0, exp2(x))                                                                                            \
  OP(log, 375, 0, log(x))                                                                                              \
  OP(erf, 435, 0, erf(x))                                                                                              \
  OP(sin, 440, 0, sin(x))                                                                                              \
  OP(cos, 420, 0, cos(x))                                                                                              \
  OP(tan, 575, 0, tan(x))                                                                                              \
  OP(asin, 275, 0, asin(x))                                                                                            \
  OP(acos, 360, 0, acos(x))                                                                                            \
  OP(atan, 305, 0, atan(x))                                                                                            \
  OP(sinh, 585, 0, sinh(x))                                                                                            \
  OP(cosh, 505, 0, cosh(x))                                                                                            \
  OP(tanh, 265, 0, tanh(x))                                                                                            \
  OP(asinh, 1365, 0, asinh(x))                                                                                         \
  OP(acosh, 1195, 0, acosh(x))                                                                                         \
  OP(atanh, 735, 0, atanh(x))                                                                                          \
  OP(sigmoid, 255, 0, sigmoid(x))                                                                                      \
  OP(silu, 290, 0, silu(x))                                                                                            \
  OP(gelu, 645, 0, gelu(x))                                                                                            \
  OP(gelu_tanh, 530, 0, gelu_tanh(x))                                                                                  \
  OP(mish, 325, 0, mish(x))                                                                                            \
  OP(softplus, 985, 0, softplus(x))                                                                                    \
  OP(softsign, 110, 0, hn::Div(x, hn::Add(one, hn::Abs(x))))                                                           \
  OP(relu, 85, 0, at_least(x, zero))                                                                                   \
  OP(relu6, 85, 0, at_most(at_least(x, zero), set(6.0f)))                                                              \
  OP(hard_swish, 90, 0, hn::Mul(x, hn::Mul(at_most(at_least(hn::Add(x, set(3.0f)), zero), set(6.0f)), set(1 / 6.0f)))) \
  OP(leaky_relu, 90, 1, hn::IfThenElse(hn::Lt(x, zero), hn::Mul(alpha, x), x))                                         \
  OP(elu, 305, 1, hn::IfThenElse(hn::Lt(x, zero), hn::Mul(alpha, expm1(hn::Min(x, zero))), x))                         \
  OP(celu, 325, 1, hn::IfThenElse(hn::Lt(x, zero), hn::Mul(alpha, expm1(hn::Div(hn::Min(x, zero), alpha))), x))        \
  OP(selu, 280, 2, hn::Mul(beta, hn::IfThenElse(hn::Lt(x, zero), hn::Mul(alpha, expm1(hn::Min(x, zero))), x)))         \
  OP(sigmoid_hard, 85, 2, at_most(at_least(hn::MulAdd(alpha, x, beta), zero), one))                                    \
  OP(clip, 90, 2, at_most(at_least(x, alpha), beta))                                                                   \
  OP(scaled_tanh, 270, 2, hn::Mul(alpha, tanh(hn::Mul(beta, x))))                                                      \
  OP(thresholded_relu, 90, 1, hn::IfThenElseZero(hn::Gt(x, alpha), x))                                                 \
  OP(threshold, 85, 1, at_least(x, alpha))                                                                             \
  OP(linear_activation, 85, 2, hn::MulAdd(alpha, x, beta))

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

// NaN passes through at_least() and at_most().
HWY_INLINE V at_least(V x, V low) { return hn::IfThenElse(hn::Lt(x, low), low, x); }
HWY_INLINE V at_most(V x, V high) { return hn::IfThenElse(hn::Gt(x, high), high, x); }

#define HEXANE_UNARY_FUNCTOR(op, picoseconds, num_attributes, expression)               \
  struct op##_op {                                                                      \
    static constexpr const char* kName = #op;                                           \
    static constexpr int kPicoseconds = picoseconds;                                    \
    static constexpr int kNumAttributes = num_attributes;                               \
    static HWY_INLINE V apply(V x, [[maybe_unused]] V alpha, [[maybe_unused]] V beta) { \
      [[maybe_unused]] const V zero = set(0.0f), one = set(1.0f);                       \
      return expression;                                                                \
    }                                                                                   \
  };
HEXANE_UNARY_OPS(HEXANE_UNARY_FUNCTOR)
#undef HEXANE_UNARY_FUNCTOR

using Apply = void (*)(const float* x, float* y, int64_t n, float alpha, float beta);

template <class Op>
HWY_NOINLINE void apply(const float* x, float* y, int64_t n, float alpha, float beta) {
  const V a = set(alpha), b = set(beta);
  map(x, y, n, [&](V v) HWY_ATTR { return Op::apply(v, a, b); });
}

template <class Op>
void apply_in_place(float* x, int64_t n, float alpha, float beta) {
  apply<Op>(x, x, n, alpha, beta);
}

struct State {
  Loop whole;
  Apply apply;
  float alpha;
  float beta;
};

template <class T>
void unary_row(std::byte* const* pointers, const int64_t* strides, int64_t n, const void* opaque) {
  const State& state = *static_cast<const State*>(opaque);
  const bool dense = strides[0] == sizeof(T) && strides[1] == sizeof(T);
  if constexpr (sizeof(T) == 4)
    if (dense)
      return state.apply(reinterpret_cast<const T*>(pointers[0]), reinterpret_cast<T*>(pointers[1]), n, state.alpha,
                         state.beta);
  alignas(64) float chunk[kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = std::min(kChunk, n - i);
    gather<T>(pointers[0] + i * strides[0], strides[0], chunk, count);
    state.apply(chunk, chunk, count, state.alpha, state.beta);
    scatter<T>(chunk, pointers[1] + i * strides[1], strides[1], count);
  }
}

Prepared prepare_rows(const Call& call, const char* name, Apply apply, int num_attributes, bool of_engine) {
  check_broadcast(name, call, 1, 1);
  auto state = std::make_shared<State>();
  state->whole = make_loop(call, 1, -1, {});
  state->apply = apply;
  const double* attributes = static_cast<const double*>(call.attrs);
  const auto number = [&](double x) { return of_engine ? as_fp16(x) : static_cast<float>(x); };
  state->alpha = num_attributes > 0 ? number(attributes[0]) : 0;
  state->beta = num_attributes > 1 ? number(attributes[1]) : 0;
  return state;
}

template <class Op, class T>
Prepared prepare_unary(const Call& call) {
  return prepare_rows(call, Op::kName, apply<Op>, Op::kNumAttributes, kIsEngine<T>);
}

template <class T>
void run_unary(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const State& state = call.state<State>();
  if (covers(call, axis, range))
    walk(state.whole, call, unary_row<T>, &state);
  else
    walk(make_loop(call, 1, axis, range), call, unary_row<T>, &state);
}

constexpr const char* kLayouts[] = {"", "alpha:f", "alpha:f beta:f"};

template <class Op, class T>
constexpr Kernel unary_kernel() {
  return {
      .name = Op::kName,
      .dtypes = sizeof(T) == 4 ? "fp32->fp32" : "fp16->fp16",
      .family = kFamily<T>,
      .attrs = kLayouts[Op::kNumAttributes],
      .attrs_bytes = 8 * Op::kNumAttributes,
      .accepts = "strided",
      .prepare = prepare_unary<Op, T>,
      .cuts = cut_every_axis,
      .needs = broadcast_needs,
      .cost = elementwise_cost<Op::kPicoseconds>,
      .run = run_unary<T>,
  };
}

#define HEXANE_UNARY_ROWS(op, ...) unary_kernel<op##_op, float>(), unary_kernel<op##_op, float16_t>(),
const Kernel kTable[] = {
    HEXANE_UNARY_OPS(HEXANE_UNARY_ROWS)
    // The engine's functions without tables. engine/activation.cpp has the functions with tables.
    unary_kernel<abs_op, engine_half>(),
    unary_kernel<neg_op, engine_half>(),
    unary_kernel<ceil_op, engine_half>(),
    unary_kernel<floor_op, engine_half>(),
    unary_kernel<round_op, engine_half>(),
    unary_kernel<sign_op, engine_half>(),
    unary_kernel<square_op, engine_half>(),
    unary_kernel<relu_op, engine_half>(),
    unary_kernel<relu6_op, engine_half>(),
    unary_kernel<leaky_relu_op, engine_half>(),
    unary_kernel<clip_op, engine_half>(),
    unary_kernel<threshold_op, engine_half>(),
    unary_kernel<thresholded_relu_op, engine_half>(),
};
#undef HEXANE_UNARY_ROWS

#define HEXANE_UNARY_ENTRY(op, ...) {#op, apply_in_place<op##_op>},
const RowFunctionEntry kRowFunctions[] = {HEXANE_UNARY_OPS(HEXANE_UNARY_ENTRY)};
#undef HEXANE_UNARY_ENTRY

std::span<const Kernel> unary_kernels() { return kTable; }
std::span<const RowFunctionEntry> row_functions() { return kRowFunctions; }

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {

HWY_EXPORT(unary_kernels);
HWY_EXPORT(row_functions);

std::span<const Kernel> unary_table() { return HWY_DYNAMIC_DISPATCH(unary_kernels)(); }

RowFunction find_row_function(std::string_view op) {
  for (const RowFunctionEntry& entry : HWY_DYNAMIC_DISPATCH(row_functions)())
    if (entry.op == op) return entry.function;
  fail("epilogue", "no row function is named '", op, "'");
}

}  // namespace hexane::cpu
#endif
