// Elementwise ops on fp64, by the C library. Models contain few fp64 ops, so the precision of these ops matters and
// their speed does not.
#include <cmath>
#include <limits>

#include "cpu/elementwise/elementwise_scalar.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

double sigmoid(double x) {
  const double e = std::exp(-std::abs(x));
  return (x < 0 ? e : 1) / (1 + e);
}

double softplus(double x) { return (x < 0 ? 0 : x) + std::log1p(std::exp(-std::abs(x))); }

double gelu_tanh(double x) {
  constexpr double kTwiceRoot = 1.5957691216057308;  // equals 2 sqrt(2 / pi)
  return x * sigmoid(kTwiceRoot * (x + 0.044715 * x * x * x));
}

// x tanh(softplus(x)) = x (u^2 + 2 u) / (u^2 + 2 u + 2) with u = exp(x); `e` below is u.
double mish(double x) {
  const double e = std::exp(x), numerator = e * (e + 2);
  return x > 40 ? x : x * (numerator / (numerator + 2));
}

double at_least(double x, double low) { return x < low ? low : x; }
double at_most(double x, double high) { return x > high ? high : x; }
double numbers(double a, double b, double result) { return std::isnan(a) || std::isnan(b) ? a + b : result; }

#define HEXANE_BINARY(op, has_epilogue, picoseconds, expression)   \
  struct op##_op {                                                 \
    static constexpr const char* kName = #op;                      \
    static constexpr bool kEpilogue = has_epilogue;                \
    static constexpr int kPicoseconds = picoseconds;               \
    static double apply(double a, double b) { return expression; } \
  };
HEXANE_BINARY(add, true, 0, a + b)
HEXANE_BINARY(sub, true, 0, a - b)
HEXANE_BINARY(mul, true, 0, a* b)
HEXANE_BINARY(real_div, true, 500, a / b)
HEXANE_BINARY(floor_div, false, 12000, floor_divide(a, b))
HEXANE_BINARY(mod, false, 12000, modulo(a, b))
HEXANE_BINARY(fmod, false, 12000, std::fmod(a, b))
HEXANE_BINARY(maximum, false, 500, numbers(a, b, a < b ? b : a))
HEXANE_BINARY(minimum, false, 500, numbers(a, b, b < a ? b : a))
HEXANE_BINARY(pow, false, 20000, std::pow(a, b))
HEXANE_BINARY(prelu, false, 0, a < 0 ? a * b : a)
#undef HEXANE_BINARY

#define HEXANE_UNARY_OPS(OP)                                       \
  OP(abs, 0, 0, std::abs(x))                                       \
  OP(neg, 0, 0, -x)                                                \
  OP(ceil, 0, 0, std::ceil(x))                                     \
  OP(floor, 0, 0, std::floor(x))                                   \
  OP(round, 0, 0, std::nearbyint(x))                               \
  OP(sign, 0, 0, x > 0 ? 1.0 : x < 0 ? -1.0 : x)                   \
  OP(sqrt, 1500, 0, std::sqrt(x))                                  \
  OP(rsqrt, 3000, 0, 1 / std::sqrt(x))                             \
  OP(inverse, 500, 0, 1 / x)                                       \
  OP(square, 0, 0, x* x)                                           \
  OP(exp, 5000, 0, std::exp(x))                                    \
  OP(exp2, 5000, 0, std::exp2(x))                                  \
  OP(log, 5000, 0, std::log(x))                                    \
  OP(erf, 15000, 0, std::erf(x))                                   \
  OP(sin, 10000, 0, std::sin(x))                                   \
  OP(cos, 10000, 0, std::cos(x))                                   \
  OP(tan, 15000, 0, std::tan(x))                                   \
  OP(asin, 10000, 0, std::asin(x))                                 \
  OP(acos, 10000, 0, std::acos(x))                                 \
  OP(atan, 10000, 0, std::atan(x))                                 \
  OP(sinh, 15000, 0, std::sinh(x))                                 \
  OP(cosh, 15000, 0, std::cosh(x))                                 \
  OP(tanh, 15000, 0, std::tanh(x))                                 \
  OP(asinh, 20000, 0, std::asinh(x))                               \
  OP(acosh, 20000, 0, std::acosh(x))                               \
  OP(atanh, 20000, 0, std::atanh(x))                               \
  OP(sigmoid, 6000, 0, sigmoid(x))                                 \
  OP(silu, 6000, 0, x* sigmoid(x))                                 \
  OP(gelu, 20000, 0, x * 0.5 * std::erfc(-0.7071067811865476 * x)) \
  OP(gelu_tanh, 8000, 0, gelu_tanh(x))                             \
  OP(mish, 8000, 0, mish(x))                                       \
  OP(softplus, 15000, 0, softplus(x))                              \
  OP(softsign, 1000, 0, x / (1 + std::abs(x)))                     \
  OP(relu, 0, 0, at_least(x, 0))                                   \
  OP(relu6, 0, 0, at_most(at_least(x, 0), 6))                      \
  OP(hard_swish, 0, 0, x* at_most(at_least(x + 3, 0), 6) / 6)      \
  OP(leaky_relu, 0, 1, x < 0 ? alpha * x : x)                      \
  OP(elu, 10000, 1, x < 0 ? alpha * std::expm1(x) : x)             \
  OP(celu, 10000, 1, x < 0 ? alpha * std::expm1(x / alpha) : x)    \
  OP(selu, 10000, 2, beta*(x < 0 ? alpha * std::expm1(x) : x))     \
  OP(sigmoid_hard, 0, 2, at_most(at_least(alpha* x + beta, 0), 1)) \
  OP(clip, 0, 2, at_most(at_least(x, alpha), beta))                \
  OP(scaled_tanh, 15000, 2, alpha* std::tanh(beta* x))             \
  OP(thresholded_relu, 0, 1, x > alpha ? x : 0)                    \
  OP(threshold, 0, 1, at_least(x, alpha))                          \
  OP(linear_activation, 0, 2, alpha* x + beta)

#define HEXANE_FUNCTOR(op, picoseconds, num_attributes, expression)                                                   \
  struct op##_op {                                                                                                    \
    static constexpr const char* kName = #op;                                                                         \
    static constexpr int kPicoseconds = picoseconds;                                                                  \
    static constexpr int kNumAttributes = num_attributes;                                                             \
    static double apply(double x, [[maybe_unused]] double alpha, [[maybe_unused]] double beta) { return expression; } \
  };
HEXANE_UNARY_OPS(HEXANE_FUNCTOR)
#undef HEXANE_FUNCTOR

#define HEXANE_ROW(op, ...) unary<op##_op, double>("fp64->fp64"),
#define HEXANE_ARITHMETIC(op) arithmetic<op##_op, double>("fp64,fp64->fp64")
constexpr Kernel kTable[] = {
    HEXANE_UNARY_OPS(HEXANE_ROW) HEXANE_ARITHMETIC(add),
    HEXANE_ARITHMETIC(sub),
    HEXANE_ARITHMETIC(mul),
    HEXANE_ARITHMETIC(real_div),
    HEXANE_ARITHMETIC(floor_div),
    HEXANE_ARITHMETIC(mod),
    HEXANE_ARITHMETIC(fmod),
    HEXANE_ARITHMETIC(maximum),
    HEXANE_ARITHMETIC(minimum),
    HEXANE_ARITHMETIC(pow),
    HEXANE_ARITHMETIC(prelu),
};
#undef HEXANE_ARITHMETIC
#undef HEXANE_ROW

}  // namespace

std::span<const Kernel> double_table() { return kTable; }

}  // namespace hexane::cpu
