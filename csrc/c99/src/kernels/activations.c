/* Functions of one fp32 number, as csrc/cpu/elementwise/elementwise_unary.cpp has them. */
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

/* -0 where a whole number rounds to 0 from below, as IEEE has it. */
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

/* x / (1 + e^-x); the numerator is made before the rounding of a tiny exponential. */
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

/* x / (1 + e^-v), v = 2 sqrt(2 / pi) (x + 0.044715 x^3), in double and rounded once. */
static float gelu_tanh(float x) {
  const double t = x < -12 ? -12 : x > 12 ? 12 : x, v = t * (1.5957691216057308 + 0.071354816272600247 * t * t);
  const double e = hx_exp_wide(v < 0 ? v : -v);
  if (x != x) return x;
  if (x < -12) return x * 0.0f;
  return x < 0 ? (float)(x * e / (1 + e)) : x > 12 ? x : (float)(x / (1 + e));
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
