/* Functions of one fp32 number, as in csrc/cpu/elementwise/elementwise_unary.cpp. */
#include "../internal.h"

#define ACTIVATION(name, numbers, expression)                   \
  static float apply_##name(float x, float alpha, float beta) { \
    (void)alpha;                                                \
    (void)beta;                                                 \
    return expression;                                          \
  }                                                             \
  const hx_activation hx_activation_##name = {#name, numbers, apply_##name};

static float absolute(float x) {
  uint32_t bits;
  HX_COPY(&bits, &x, 4);
  bits &= 0x7fffffffu;
  HX_COPY(&x, &bits, 4);
  return x;
}

static float copy_sign(float x, float sign) {
  uint32_t a, b;
  HX_COPY(&a, &x, 4);
  HX_COPY(&b, &sign, 4);
  a = (a & 0x7fffffffu) | (b & 0x80000000u);
  HX_COPY(&x, &a, 4);
  return x;
}

/* Gives a result of 0 the sign of x, as IEEE 754 requires for rounding to integers. */
static float rounded(float x) { return copy_sign(hx_round(x), x); }

static float floored(float x) {
  const float r = hx_round(x);
  return copy_sign(r > x ? r - 1 : r, x);
}

static float raised(float x) {
  const float r = hx_round(x);
  return copy_sign(r < x ? r + 1 : r, x);
}

static float sigmoid(float x) {
  const float e = hx_exp(-absolute(x));
  return (x < 0 ? e : 1.0f) / (1.0f + e);
}

/* Returns x / (1 + e^-x). For x < 0 this is x e^x / (1 + e^x) with e^x = p 2^k. x p is computed before the scaling by
 * 2^k, so that a tiny e^x loses no digits. */
static float silu(float x) {
  float k, r, p, numerator, low;
  const float a = -absolute(x);
  if (x != x) return x;
  r = hx_reduce_exp(a < -150.0f ? -150.0f : a, &k);
  p = hx_fma(r, hx_exp_slope(r), 1.0f);
  low = hx_fma(x, 0.0f, (x < -200.0f ? -200.0f : x) * p);
  numerator = x < 0 ? hx_scale(low, k) : x;
  return numerator / (1.0f + hx_scale(p, k));
}

static float tangent(float x) { /* t / (t + 2), t = e^|2 x| - 1 */
  float k, r, power, t, a = absolute(x);
  if (x != x) return x;
  if (a > 10.0f) a = 10.0f;
  r = hx_reduce_exp(a + a, &k);
  power = hx_scale(1.0f, k);
  t = hx_fma(power, r * hx_exp_slope(r), power - 1.0f);
  return copy_sign(t / (t + 2.0f), x);
}

static float error_function(float x) {
  const float a = absolute(x), square = x * x;
  float p, k, r, bounded;
  if (x != x) return x;
  if (a < 1.0f) {
    p = -0.000566015602f;
    p = hx_fma(p, square, 0.00492478954f);
    p = hx_fma(p, square, -0.0267177075f);
    p = hx_fma(p, square, 0.112804115f);
    p = hx_fma(p, square, -0.376123548f);
    return x * hx_fma(p, square, 1.12837911f);
  }
  bounded = a > 4.05f ? 4.05f : a;
  p = -0.00115042203f;
  p = hx_fma(p, bounded, 0.0147781195f);
  p = hx_fma(p, bounded, -0.0886341706f);
  p = hx_fma(p, bounded, -0.654488921f);
  p = hx_fma(p, bounded, -1.11743844f);
  p = hx_fma(p, bounded, -0.002671703f);
  r = hx_reduce_exp(p, &k);
  return copy_sign(1.0f - hx_scale(hx_fma(r, hx_exp_slope(r), 1.0f), k), x);
}

static float expm1_of(float x) {
  float k, r, rest;
  if (x == 0 || x != x) return x;
  r = hx_reduce_exp(hx_clamp(x, -30.0f, 100.0f), &k);
  rest = 1.0f - hx_scale(1.0f, -k);
  return hx_scale(hx_fma(r, hx_exp_slope(r), rest), k);
}

static float gelu(float x) {
  static const float kTail[] = {-0.0103711234f, 0.0467880294f,  -0.0600841157f, -0.0163968932f,
                                0.0596738607f,  -0.0095565021f, 0.081616357f,   0.0796589255f,
                                0.104363851f,   0.112100817f,   0.112206802f};
  const float c = 0.28125f;
  float t = absolute(x), square, lost_square, divisor, u, excess, u_lost, lost, k, r, p, ratio, tail;
  int i;
  if (x != x) return x;
  if (t > 17.0f) t = 17.0f;
  square = t * t;
  lost_square = hx_fma(t, t, -square);
  divisor = hx_fma(t, c, 1.0f);
  u = 1.0f / divisor;
  excess = hx_fma(-t, c, divisor - 1.0f);
  u_lost = hx_fma(u, excess, hx_fma(-u, divisor, 1.0f));
  lost = hx_fma(hx_fma(u, 1.84f, 1.0f), u_lost, lost_square * -0.5f);
  r = hx_reduce_exp(square * -0.5f, &k) + lost;
  p = hx_fma(r, hx_exp_slope(r), 1.0f);
  ratio = kTail[0];
  for (i = 1; i < 11; ++i) ratio = hx_fma(ratio, u, kTail[i]);
  tail = hx_scale(copy_sign(t, x) * (u * ratio) * p, k);
  return x < 0 ? hx_fma(x, 0.0f, tail) : x - tail;
}

/* Returns x / (1 + e^-v) with v = 2 sqrt(2 / pi) (x + 0.044715 x^3), computed in double and rounded once. */
static float gelu_tanh(float x) {
  const double t = x < -12 ? -12 : x > 12 ? 12 : x, v = t * (1.5957691216057308 + 0.071354816272600247 * t * t);
  const double e = hx_exp_wide(v < 0 ? v : -v);
  if (x != x) return x;
  if (x < -12) return x * 0.0f;
  return x < 0 ? (float)(x * e / (1 + e)) : x > 12 ? x : (float)(x / (1 + e));
}

/* Returns the sine of r + quarter * pi / 2 for r from -pi / 4 to pi / 4, to 2^-50. */
static double turned_sine(double r, int32_t quarter) {
  static const double kSine[] = {
      1.0 / 6227020800.0, -1.0 / 39916800, 1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6, 1};
  static const double kCosine[] = {1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320, -1.0 / 720, 1.0 / 24, -0.5, 1};
  const double* terms = quarter & 1 ? kCosine : kSine;
  const double square = r * r;
  double p = quarter & 1 ? -1.0 / 87178291200.0 : -1.0 / 1307674368000.0;
  int i;
  for (i = 0; i < 7; ++i) p = p * square + terms[i];
  if (!(quarter & 1)) p *= r;
  return quarter & 2 ? -p : p;
}

/* Subtracts the nearest integer from `turns`, which counts quarter turns, and adds this integer to *quarter. */
static double without_quarters(double turns, int32_t* quarter) {
  const int32_t whole = (int32_t)(turns < 0 ? turns - 0.5 : turns + 0.5);
  *quarter += whole;
  return turns - (double)whole;
}

/* Reduces x = m 2^e >= 2^20 to quarter turns modulo 4. Multiplies m by 2 / pi, one word of 2 / pi at a time. Words
 * whose products are multiples of 4 are skipped. The remainder stays exact until it is small. */
static double quarters_of(uint32_t bits, int32_t* quarter) {
  static const uint32_t kTwoOverPi[] = {0xa2f983u, 0x6e4e44u, 0x1529fcu, 0x2757d1u, 0xf534ddu,
                                        0xc0db62u, 0x95993cu, 0x439041u, 0xfe5163u, 0xabdebbu};
  const int32_t e = (int32_t)(bits >> 23) - 150, first = e > 49 ? (e - 2) / 24 - 1 : 0;
  const double m = (double)((bits & 0x7fffffu) | 0x800000u);
  double turns = 0;
  int32_t i;
  for (i = first; i < first + 7; ++i) {
    int32_t shift = e - 24 * (i + 1);
    double term = m * (double)kTwoOverPi[i], most = 4;
    for (; shift > 0; --shift) term += term;
    for (; shift < 0; ++shift) term *= 0.5;
    while (most <= term) most += most;
    for (; most >= 4; most *= 0.5)
      if (term >= most) term -= most;
    turns = without_quarters(turns + term, quarter);
  }
  return turns;
}

/* Returns x minus the nearest multiple of pi / 2, and in *quarter this multiple modulo 4. Returns NaN if x is not
 * finite. */
static double of_quarter(float x, int32_t* quarter) {
  const uint32_t bits = hx_u32_of(x) & 0x7fffffffu;
  double r;
  *quarter = 0;
  if (bits >= 0x7f800000u) return x - x;
  if (bits < 0x49800000u) { /* 2^20: the products of the first two parts of pi / 2 are exact */
    double whole;
    without_quarters(x * 0.63661977236758138, quarter);
    whole = (double)*quarter;
    return ((x - whole * 1.5707963267341256) - whole * 6.077100506303966e-11) - whole * 2.0222662487959506e-21;
  }
  r = quarters_of(bits, quarter) * 1.5707963267948966;
  if (x > 0) return r;
  *quarter = -*quarter;
  return -r;
}

static float sine(float x, int32_t turned) { /* sine of x plus `turned` quarter turns */
  int32_t quarter;
  const double r = of_quarter(x, &quarter);
  return r != r ? x - x : (float)turned_sine(r, (quarter & 3) + turned);
}

static float tangent_of(float x) {
  int32_t quarter;
  const double r = of_quarter(x, &quarter);
  quarter &= 3;
  return r != r ? x - x : x == 0 ? x : (float)(turned_sine(r, quarter) / turned_sine(r, quarter + 1));
}

/* Returns (e^x - sign e^-x) / 2, computed in double. sinh of a small number uses the power series. */
static float hyperbolic(float x, double sign) {
  const double grown = hx_exp_wide(x), square = (double)x * x;
  if (x != x || x - x != 0) return sign < 0 ? absolute(x) : x;
  if (sign > 0 && square < 0.25)
    return (float)(x * (1 + square * (1.0 / 6 + square * (1.0 / 120 + square * (1.0 / 5040 + square / 362880)))));
  return (float)(0.5 * grown - sign * (0.5 / grown));
}

static float at_least(float x, float low) { return x < low ? low : x; }
static float at_most(float x, float high) { return x > high ? high : x; }

ACTIVATION(abs, 0, absolute(x))
ACTIVATION(neg, 0, -x)
ACTIVATION(ceil, 0, raised(x))
ACTIVATION(floor, 0, floored(x))
ACTIVATION(round, 0, rounded(x))
ACTIVATION(sign, 0, absolute(x) > 0 ? copy_sign(1.0f, x) : x)
ACTIVATION(sqrt, 0, hx_sqrt(x))
ACTIVATION(rsqrt, 0, 1.0f / hx_sqrt(x))
ACTIVATION(inverse, 0, 1.0f / x)
ACTIVATION(square, 0, x* x)
ACTIVATION(exp, 0, hx_exp(x))
ACTIVATION(log, 0, hx_log(x))
ACTIVATION(erf, 0, error_function(x))
ACTIVATION(tanh, 0, tangent(x))
ACTIVATION(sigmoid, 0, sigmoid(x))
ACTIVATION(silu, 0, silu(x))
ACTIVATION(gelu, 0, gelu(x))
ACTIVATION(gelu_tanh, 0, gelu_tanh(x))
ACTIVATION(sin, 0, x == 0 ? x : sine(x, 0))
ACTIVATION(cos, 0, sine(x, 1))
ACTIVATION(tan, 0, tangent_of(x))
ACTIVATION(sinh, 0, hyperbolic(x, 1))
ACTIVATION(cosh, 0, hyperbolic(x, -1))
ACTIVATION(exp2, 0, hx_power(2.0f, x))
ACTIVATION(softplus, 0, (x < 0 ? 0.0f : x) + hx_log1p(hx_exp(-absolute(x))))
ACTIVATION(softsign, 0, x / (1.0f + absolute(x)))
ACTIVATION(relu, 0, at_least(x, 0.0f))
ACTIVATION(relu6, 0, at_most(at_least(x, 0.0f), 6.0f))
ACTIVATION(hard_swish, 0, x*(at_most(at_least(x + 3.0f, 0.0f), 6.0f) * (1 / 6.0f)))
ACTIVATION(leaky_relu, 1, x < 0 ? alpha * x : x)
ACTIVATION(elu, 1, x < 0 ? alpha * expm1_of(x) : x)
ACTIVATION(celu, 1, x < 0 ? alpha * expm1_of(x / alpha) : x)
ACTIVATION(selu, 2, beta*(x < 0 ? alpha * expm1_of(x) : x))
ACTIVATION(sigmoid_hard, 2, at_most(at_least(hx_fma(alpha, x, beta), 0.0f), 1.0f))
ACTIVATION(clip, 2, at_most(at_least(x, alpha), beta))
ACTIVATION(scaled_tanh, 2, alpha* tangent(beta* x))
ACTIVATION(thresholded_relu, 1, x > alpha ? x : 0.0f)
ACTIVATION(threshold, 1, at_least(x, alpha))
ACTIVATION(linear_activation, 2, hx_fma(alpha, x, beta))
