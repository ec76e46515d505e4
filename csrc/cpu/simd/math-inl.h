// Elementary functions on fp32 vectors, over their whole domain: within 4 ulp of the true value, with subnormal
// results, and with NaN and infinities as in C. Included once per Highway target, in foreach_target.
//
// Polynomials are minimax fits of the relative error over the reduced range. A comment at each polynomial names the
// function that the polynomial fits.
#if defined(HEXANE_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEXANE_CPU_MATH_INL_H_
#undef HEXANE_CPU_MATH_INL_H_
#else
#define HEXANE_CPU_MATH_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <cmath>
#include <limits>

#include "core/instruction_sets.h"
#include "cpu/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {

using DI = hn::RebindToSigned<D>;
using VI = hn::Vec<DI>;

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Returns c0 + c1 x + c2 x^2 + ...
template <class... C>
HWY_INLINE V polynomial(V x, float c0, C... rest) {
  if constexpr (sizeof...(rest) == 0)
    return set(c0);
  else
    return hn::MulAdd(polynomial(x, rest...), x, set(c0));
}

HWY_INLINE V nan_or(V x, V result) { return hn::IfThenElse(hn::IsNaN(x), x, result); }

// Returns the rounding error of a product: a * b - product.
HWY_INLINE V product_error(V a, V b, V product) {
#if HWY_NATIVE_FMA
  return hn::MulSub(a, b, product);
#else
  const auto high = [](V x) HWY_ATTR {
    const V big = hn::Mul(x, set(4097.0f));
    return hn::Sub(big, hn::Sub(big, x));
  };
  const V a1 = high(a), b1 = high(b), a2 = hn::Sub(a, a1), b2 = hn::Sub(b, b1);
  const V cross = hn::Add(hn::Mul(a1, b2), hn::Mul(a2, b1));
  return hn::Add(hn::Add(hn::Sub(hn::Mul(a1, b1), product), cross), hn::Mul(a2, b2));
#endif
}

// Returns c - a b, rounded once if c and a b nearly cancel.
HWY_INLINE V residual(V c, V a, V b) {
#if HWY_NATIVE_FMA
  return hn::NegMulAdd(a, b, c);
#else
  const V product = hn::Mul(a, b);
  return hn::Sub(hn::Sub(c, product), product_error(a, b, product));
#endif
}

// ---- exponentials ----

// Returns x 2^k for a whole number k, rounded once.
HWY_INLINE V scale_by_processor(V x, V k) {
#if HEXANE_HAS_AVX512
  return V{_mm512_scalef_ps(x.raw, k.raw)};
#else
  const VI n = hn::ConvertTo(DI(), k), half = hn::ShiftRight<1>(n), bias = hn::Set(DI(), 127);
  const auto power = [&](VI i) HWY_ATTR { return hn::BitCast(D(), hn::ShiftLeft<23>(hn::Add(i, bias))); };
  return hn::Mul(hn::Mul(x, power(half)), power(hn::Sub(n, half)));
#endif
}

// Like scale_by_processor(), but fast for subnormal results: it computes them as integer multiples of 2^-149, because a
// processor takes about 150 cycles for a subnormal result or underflow. Requires |x| >= 2^-70 if k < -100.
HWY_INLINE V scale(V x, V k) {
  const M tiny = hn::Lt(k, set(-100.0f));
  if (HWY_LIKELY(hn::AllFalse(D(), tiny))) return scale_by_processor(x, k);
  const V units = hn::Abs(scale_by_processor(x, hn::IfThenElseZero(tiny, hn::Add(k, set(149.0f)))));
  const M subnormal = hn::And(tiny, hn::Lt(units, set(0x1p23f)));
  const V bits = hn::BitCast(D(), hn::NearestInt(hn::IfThenElseZero(subnormal, units)));
  const V usual = scale_by_processor(x, hn::IfThenZeroElse(subnormal, k));
  return hn::IfThenElse(subnormal, hn::CopySign(bits, x), usual);
}

// Clamps x to [low, high]; NaN stays NaN. On x86 the order of operands keeps NaN, because Min and Max return the second
// operand for a NaN.
HWY_INLINE V limit(V x, float low, float high) { return hn::Max(set(low), hn::Min(set(high), x)); }

// Returns r = x - k ln 2 with |r| <= ln 2 / 2, for |x| < 2^21. Both products with parts of ln 2 are exact.
HWY_INLINE V reduce_exp(V x, V& k) {
  const V magic = set(0x1.8p23f);  // adding x to `magic` rounds x to a whole number
  k = hn::Sub(hn::MulAdd(x, set(1.44269504f), magic), magic);
  return hn::NegMulAdd(k, set(-2.12194440e-4f), hn::NegMulAdd(k, set(0.693359375f), x));
}

// Like reduce_exp(), but gives 2^k, for |x| < 87. Rounding leaves the exponent of 2^k in the low bits.
HWY_INLINE V reduce_exp_power(V x, V& power) {
  const V magic = set(0x1.8p23f + 127), rounded = hn::MulAdd(x, set(1.44269504f), magic), k = hn::Sub(rounded, magic);
  power = hn::BitCast(D(), hn::ShiftLeft<23>(hn::BitCast(DI(), rounded)));
  return hn::NegMulAdd(k, set(-2.12194440e-4f), hn::NegMulAdd(k, set(0.693359375f), x));
}

// Fits (e^r - 1) / r for |r| <= ln 2 / 2.
HWY_INLINE V exp_slope(V r) {
  return polynomial(r, 1.0f, 0.5f, 0.16666542f, 0.0416662805f, 0.00836664438f, 0.00139465544f);
}

// Returns p = e^r = 1 + r slope, so that e^x = p 2^k. A factor of a tiny e^x has to multiply p before scale() rounds to
// a subnormal.
HWY_INLINE V exp_of_reduced(V r) { return hn::MulAdd(r, exp_slope(r), set(1.0f)); }

HWY_INLINE V exp(V x) {
  V k;
  const V r = reduce_exp(limit(x, -150.0f, 100.0f), k);
  return scale(exp_of_reduced(r), k);
}

// Returns e^x for x <= 0.
HWY_INLINE V exp_of_negative(V x) {
  V k;
  const V r = reduce_exp(hn::Max(set(-150.0f), x), k);
  return scale(exp_of_reduced(r), k);
}

// Returns e^x for x <= 0, as a weight of a softmax with largest weight 1. Weights below 2^-125 become 0: the sum of the
// weights does not change, and multiplying by 0 is faster than by a subnormal number.
HWY_INLINE V weight_of_negative(V x) {
  V k;
  const V r = reduce_exp(hn::Max(set(-150.0f), x), k);
  const M none = hn::Lt(k, set(-125.0f));
  return hn::IfThenZeroElse(none, scale_by_processor(exp_of_reduced(r), hn::IfThenZeroElse(none, k)));
}

HWY_INLINE V exp2(V x) {
  const V bounded = limit(x, -160.0f, 140.0f), k = hn::Round(bounded);
  const V r = hn::Mul(hn::Sub(bounded, k), set(0.693147181f));
  return scale(exp_of_reduced(r), k);
}

// Returns e^x - 1, accurate also near 0.
HWY_INLINE V expm1(V x) {
  V k;
  const V r = reduce_exp(limit(x, -30.0f, 100.0f), k);
  const V rest = hn::Sub(set(1.0f), scale(set(1.0f), hn::Neg(k)));
  const V result = scale(hn::MulAdd(r, exp_slope(r), rest), k);
  return hn::IfThenElse(hn::Eq(x, hn::Zero(D())), x, nan_or(x, result));
}

// ---- logarithms ----

HWY_INLINE V log(V x) {
  const DI di;
  const M subnormal = hn::Lt(x, set(std::numeric_limits<float>::min()));
  const V scaled = hn::IfThenElse(subnormal, hn::Mul(x, set(0x1p25f)), x);
  // scaled = 2^e m, sqrt(1/2) <= m < sqrt(2)
  const VI bits = hn::Sub(hn::BitCast(di, scaled), hn::Set(di, 0x3f3504f3));
  const V e = hn::Sub(hn::ConvertTo(D(), hn::ShiftRight<23>(bits)), hn::IfThenElseZero(subnormal, set(25.0f)));
  const V m = hn::BitCast(D(), hn::Add(hn::And(bits, hn::Set(di, 0x7fffff)), hn::Set(di, 0x3f3504f3)));
  const V f = hn::Sub(m, set(1.0f));
  // fits (log(1 + f) - f + f^2 / 2) / f^3
  const V p = polynomial(f, 0.333333105f, -0.249999866f, 0.200022265f, -0.16669251f, 0.142186582f, -0.123843431f,
                         0.118729658f, -0.117898352f, 0.0691542476f);
  const V square = hn::Mul(f, f);
  const V low = hn::MulAdd(e, set(-2.12194440e-4f), hn::Mul(hn::Mul(square, f), p));
  const V result = hn::MulAdd(e, set(0.693359375f), hn::Add(f, hn::NegMulAdd(set(0.5f), square, low)));
  const V special = hn::IfThenElse(hn::Eq(x, hn::Zero(D())), set(-kInfinity),
                                   hn::IfThenElse(hn::Eq(x, set(kInfinity)), x, set(std::nanf(""))));
  const M ordinary = hn::And(hn::Gt(x, hn::Zero(D())), hn::Lt(x, set(kInfinity)));
  return hn::IfThenElse(ordinary, result, special);
}

HWY_INLINE V log1p(V x) {
  const M tiny = hn::Lt(hn::Abs(x), set(0x1p-60f));
  const V u = hn::Add(set(1.0f), x);
  const V lost = hn::IfThenZeroElse(tiny, hn::Sub(x, hn::Sub(u, set(1.0f))));
  const V result = hn::Add(log(u), hn::Div(lost, u));
  const M edge = hn::Or(hn::Eq(u, hn::Zero(D())), hn::Eq(u, set(kInfinity)));
  return hn::IfThenElse(edge, log(u), hn::IfThenElse(tiny, x, result));
}

// ---- hyperbolic functions ----

// Returns t / (t + 2) with the sign of x, where t = e^|2 x| - 1.
HWY_INLINE V tanh(V x) {
  V power;
  const V a = hn::Min(set(10.0f), hn::Abs(x)), r = reduce_exp_power(hn::Add(a, a), power);
  const V t = hn::MulAdd(power, hn::Mul(r, exp_slope(r)), hn::Sub(power, set(1.0f)));
  return hn::CopySign(hn::Div(t, hn::Add(t, set(2.0f))), x);
}

// Returns e^a / 2, which is sinh and cosh of a large a. Computing e^a first would overflow too early.
HWY_INLINE V half_exp(V a) {
  const V h = exp(hn::Mul(a, set(0.5f)));
  return hn::Mul(hn::Mul(h, set(0.5f)), h);
}

HWY_INLINE V sinh(V x) {
  const V a = hn::Abs(x), t = expm1(a);
  const V small = hn::Mul(set(0.5f), hn::Add(t, hn::Div(t, hn::Add(t, set(1.0f)))));
  return nan_or(x, hn::CopySign(hn::IfThenElse(hn::Lt(a, set(40.0f)), small, half_exp(a)), x));
}

HWY_INLINE V cosh(V x) {
  const V a = hn::Abs(x), e = exp(a);
  const V small = hn::Mul(set(0.5f), hn::Add(e, hn::Div(set(1.0f), e)));
  return nan_or(x, hn::IfThenElse(hn::Lt(a, set(40.0f)), small, half_exp(a)));
}

HWY_INLINE V asinh(V x) {
  const V a = hn::Abs(x), square = hn::Mul(a, a);
  const V root = hn::Sqrt(hn::Add(square, set(1.0f)));
  const V small = log1p(hn::Add(a, hn::Div(square, hn::Add(root, set(1.0f)))));
  const V large = hn::Add(log(a), set(0.693147181f));
  return nan_or(x, hn::CopySign(hn::IfThenElse(hn::Lt(a, set(1e4f)), small, large), x));
}

HWY_INLINE V acosh(V x) {
  const V t = hn::Sub(x, set(1.0f));
  const V small = log1p(hn::Add(t, hn::Sqrt(hn::MulAdd(t, t, hn::Add(t, t)))));
  const V large = hn::Add(log(x), set(0.693147181f));
  const V result = hn::IfThenElse(hn::Lt(x, set(1e4f)), small, large);
  return hn::IfThenElse(hn::Lt(x, set(1.0f)), set(std::nanf("")), result);
}

HWY_INLINE V atanh(V x) {
  const V a = hn::Abs(x);
  const V result = hn::Mul(set(0.5f), log1p(hn::Div(hn::Add(a, a), hn::Sub(set(1.0f), a))));
  return nan_or(x, hn::CopySign(result, x));
}

// ---- trigonometric functions ----

// Returns sin (shift 0) or cos (shift 1) for |x| < 8192. x = n pi/2 + r; the first three products of the reduction are
// exact.
HWY_INLINE V sine(V x, int shift) {
  const DI di;
  const VI n = hn::NearestInt(hn::Mul(x, set(0.636619772f)));
  const V k = hn::ConvertTo(D(), n);
  V r = hn::NegMulAdd(k, set(0x1.92p0f), x);
  r = hn::NegMulAdd(k, set(0x1.fb4p-12f), r);
  r = hn::NegMulAdd(k, set(0x1.444p-24f), r);
  r = hn::NegMulAdd(k, set(0x1.68c234p-39f), r);
  const V z = hn::Mul(r, r);
  const V sin = hn::MulAdd(hn::Mul(r, z), polynomial(z, -0.166666552f, 0.00833217613f, -0.000195169778f), r);
  const V cos = hn::Add(hn::NegMulAdd(set(0.5f), z, set(1.0f)),
                        hn::Mul(hn::Mul(z, z), polynomial(z, 0.0416666456f, -0.00138873642f, 2.44380899e-05f)));
  const VI quadrant = hn::Add(n, hn::Set(di, shift));
  const V sign = hn::BitCast(D(), hn::ShiftLeft<30>(hn::And(quadrant, hn::Set(di, 2))));
  const M odd = hn::RebindMask(D(), hn::TestBit(quadrant, hn::Set(di, 1)));
  return hn::Xor(hn::IfThenElse(odd, cos, sin), sign);
}

// Computes f(x) with `vector` for |x| < bound, and with `scalar` for each other lane.
template <class Vector>
HWY_INLINE V in_range(V x, float bound, Vector vector, float (*scalar)(float)) {
  const M inside = hn::Lt(hn::Abs(x), set(bound));
  const V result = vector(hn::IfThenElseZero(inside, x));
  if (HWY_LIKELY(hn::AllTrue(D(), inside))) return result;
  alignas(64) float in[kLanes], out[kLanes];
  hn::Store(x, D(), in);
  hn::Store(result, D(), out);
  for (int64_t i = 0; i < kLanes; ++i)
    if (!(std::abs(in[i]) < bound)) out[i] = scalar(in[i]);
  return hn::Load(D(), out);
}

HWY_INLINE V sin(V x) {
  const auto vector = [](V v) HWY_ATTR { return hn::IfThenElse(hn::Eq(v, hn::Zero(D())), v, sine(v, 0)); };
  return in_range(x, 8192.0f, vector, [](float v) { return std::sin(v); });
}

HWY_INLINE V cos(V x) {
  return in_range(
      x, 8192.0f, [](V v) HWY_ATTR { return sine(v, 1); }, [](float v) { return std::cos(v); });
}

HWY_INLINE V tan(V x) {
  const auto vector = [](V v) HWY_ATTR {
    return hn::IfThenElse(hn::Eq(v, hn::Zero(D())), v, hn::Div(sine(v, 0), sine(v, 1)));
  };
  return in_range(x, 8192.0f, vector, [](float v) { return std::tan(v); });
}

HWY_INLINE V outside_one_is_nan(V x, V result) {
  return hn::IfThenElse(hn::Le(hn::Abs(x), set(1.0f)), result, set(std::nanf("")));
}
HWY_INLINE V asin(V x) { return outside_one_is_nan(x, hn::Asin(D(), x)); }
HWY_INLINE V acos(V x) { return outside_one_is_nan(x, hn::Acos(D(), x)); }
HWY_INLINE V atan(V x) { return nan_or(x, hn::Atan(D(), x)); }

// `result`: x times a gate, computed for x < 0. Returns `result`, except NaN for x = -infinity: the gate is then 0, and
// -infinity times 0 is NaN.
HWY_INLINE V gated(V x, V result) { return hn::IfThenElse(hn::Eq(x, set(-kInfinity)), set(std::nanf("")), result); }

// ---- the normal distribution ----

// Fits e^(t^2 / 2) times the probability that a normal variable exceeds t >= 0, in u = 1 / (1 + t 9/32).
HWY_INLINE V normal_tail_ratio(V u) {
  return hn::Mul(u, polynomial(u, 0.112206802f, 0.112100817f, 0.104363851f, 0.0796589255f, 0.081616357f, -0.0095565021f,
                               0.0596738607f, -0.0163968932f, -0.0600841157f, 0.0467880294f, -0.0103711234f));
}

HWY_INLINE V erf(V x) {
  const V a = hn::Abs(x), square = hn::Mul(x, x);
  const V small = hn::Mul(x, polynomial(square, 1.12837911f, -0.376123548f, 0.112804115f, -0.0267177075f,
                                        0.00492478954f, -0.000566015602f));
  // fits log(1 - erf(a)) for 1 <= a <= 4.05; for larger a, erf(a) rounds to 1
  const V exponent = polynomial(hn::Min(set(4.05f), a), -0.002671703f, -1.11743844f, -0.654488921f, -0.0886341706f,
                                0.0147781195f, -0.00115042203f);
  V power;
  const V rest = hn::Mul(exp_of_reduced(reduce_exp_power(exponent, power)), power);
  return hn::IfThenElse(hn::Lt(a, set(1.0f)), small, hn::CopySign(hn::Sub(set(1.0f), rest), x));
}

// Returns x times the probability that a normal variable is less than x. The tail is not computed as a difference from
// 1, so it keeps its digits. The rounding errors of t^2 and u are corrected to first order; the ratio varies about as
// u^(1 + 1.84 u).
HWY_INLINE V gelu(V x) {
  const V one = set(1.0f), t = hn::Min(set(17.0f), hn::Abs(x));  // beyond 17 the tail is 0
  const V square = hn::Mul(t, t), square_lost = product_error(t, t, square);
  const V c = set(0.28125f), divisor = hn::MulAdd(t, c, one), u = hn::Div(one, divisor);
  const V divisor_excess = residual(hn::Sub(divisor, one), t, c);
  const V u_lost = hn::MulAdd(u, divisor_excess, residual(one, u, divisor));
  const V lost = hn::MulAdd(hn::MulAdd(u, set(1.84f), one), u_lost, hn::Mul(square_lost, set(-0.5f)));
  V k;
  const V p = exp_of_reduced(hn::Add(reduce_exp(hn::Mul(square, set(-0.5f)), k), lost));
  const V tail = scale(hn::Mul(hn::Mul(hn::CopySign(t, x), normal_tail_ratio(u)), p), k);
  return hn::IfThenElse(hn::Lt(x, hn::Zero(D())), gated(x, tail), hn::Sub(x, tail));
}

// ---- sigmoids ----

// 1 + p 2^k for k <= 0; a power below 2^-24 does not change the result.
HWY_INLINE V one_and(V p, V k) { return hn::Add(set(1.0f), scale_by_processor(p, hn::Max(set(-40.0f), k))); }

HWY_INLINE V sigmoid(V x) {
  V k;
  const V p = exp_of_reduced(reduce_exp(hn::Max(set(-150.0f), hn::Neg(hn::Abs(x))), k));
  const M negative = hn::Lt(x, hn::Zero(D()));
  if (HWY_LIKELY(hn::AllFalse(D(), hn::Lt(k, set(-100.0f))))) {
    const V e = scale_by_processor(p, k);
    return hn::Div(hn::IfThenElse(negative, e, set(1.0f)), hn::Add(set(1.0f), e));
  }
  const V result = hn::Div(hn::IfThenElse(negative, p, set(1.0f)), one_and(p, k));
  return scale(result, hn::IfThenElseZero(negative, k));
}

// Returns x / (1 + e^-u). r and k are reduce_exp(-|u|), x and u have the same sign, and the result is 0 for x below
// -200. If u is large, the quotient is scaled last, because only this step has subnormal results.
HWY_INLINE V times_sigmoid(V x, V r, V k) {
  const V p = exp_of_reduced(r);
  const M negative = hn::Lt(x, hn::Zero(D()));
  if (HWY_LIKELY(hn::AllFalse(D(), hn::Lt(k, set(-100.0f))))) {
    const V e = scale_by_processor(p, k);
    return hn::Div(hn::IfThenElse(negative, hn::Mul(x, e), x), hn::Add(set(1.0f), e));
  }
  const V low = gated(x, hn::Mul(hn::Max(set(-200.0f), x), p));
  const V result = hn::Div(hn::IfThenElse(negative, low, x), one_and(p, k));
  return scale(result, hn::IfThenElseZero(negative, k));
}

HWY_INLINE V silu(V x) {
  V k;
  const V r = reduce_exp(hn::Max(set(-150.0f), hn::Neg(hn::Abs(x))), k);
  return times_sigmoid(x, r, k);
}

// Returns x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3). u is held in two floats, because an absolute error of u
// is a relative error of its exponential.
HWY_INLINE V gelu_tanh(V x) {
  const V t = limit(x, -11.5f, 11.5f);  // beyond 11.5 the sigmoid is 0 or 1
  const V square = hn::Mul(t, t), square_low = product_error(t, t, square);
  constexpr float kC1 = 1.59576917f, kC1Low = -4.53406804e-8f, kC3 = 0.0713548139f, kC3Low = 2.3988324e-9f;
  const V c3 = set(kC3), cube = hn::Mul(square, c3);
  const V cube_low = hn::Add(product_error(square, c3, cube), hn::MulAdd(square_low, c3, hn::Mul(square, set(kC3Low))));
  const V sum = hn::Add(cube, set(kC1));  // |cube| may exceed the constant, so both orders are handled
  const V back = hn::Sub(sum, cube);
  const V sum_low =
      hn::Add(hn::Add(hn::Sub(set(kC1), back), hn::Sub(cube, hn::Sub(sum, back))), hn::Add(cube_low, set(kC1Low)));
  const V u = hn::Mul(t, sum);
  const V u_low = hn::MulAdd(t, sum_low, product_error(t, sum, u));
  V k;
  const V sign = hn::And(u, set(-0.0f));
  const V r = hn::Sub(reduce_exp(hn::Neg(hn::Abs(u)), k), hn::Xor(u_low, sign));
  return times_sigmoid(x, r, k);
}

HWY_INLINE V softplus(V x) {
  return hn::Add(hn::IfThenElse(hn::Lt(x, hn::Zero(D())), hn::Zero(D()), x),
                 log1p(exp_of_negative(hn::Neg(hn::Abs(x)))));
}

// Returns x tanh(softplus(x)) = x (u^2 + 2 u) / (u^2 + 2 u + 2) with u = exp(x); `e` below is u.
HWY_INLINE V mish(V x) {
  V k;
  const V p = exp_of_reduced(reduce_exp(limit(x, -150.0f, 20.0f), k));
  const V e = scale_by_processor(p, hn::Max(set(-40.0f), k)), e2 = hn::Add(e, set(2.0f));
  const V numerator = hn::Mul(hn::Max(set(-200.0f), x), hn::Mul(p, e2));
  const V result = scale(hn::Div(gated(x, numerator), hn::MulAdd(e, e2, set(2.0f))), k);
  return hn::IfThenElse(hn::Gt(x, set(20.0f)), x, result);
}

}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
