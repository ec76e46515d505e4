/* The arithmetic that kernels share: a multiply-add that is rounded once, sums in blocks, and exponentials with the
 * same operations as on the host (csrc/cpu/simd/math-inl.h). */
#include "internal.h"

#if defined(__OPTIMIZE_SIZE__)
float hx_round(float x) { return hx_rounded(x); }
#endif

/* Computes a b + c, rounded once. The product is exact in double. The sum is rounded to odd in double, so that
 * rounding it again to float equals a single rounding. */
float hx_fma_soft(float a, float b, float c) {
  const double product = (double)a * (double)b, addend = (double)c, sum = product + addend;
  const double part = sum - product, error = (product - (sum - part)) + (addend - part);
  uint64_t bits;
  double odd;
  if (!(error < 0 || error > 0)) return (float)sum;
  HX_COPY(&bits, &sum, 8);
  if (bits & 1) return (float)sum;
  if (sum - sum != 0) return (float)sum;
  bits += (error > 0) == (sum > 0) ? 1 : (uint64_t)-1;
  HX_COPY(&odd, &bits, 8);
  return (float)odd;
}

static float from_bits(uint32_t bits) {
  float value;
  HX_COPY(&value, &bits, 4);
  return value;
}

/* Returns m 2^-shift, rounded to nearest even. */
static uint32_t shifted(uint64_t m, int shift) {
  const uint64_t whole = m >> shift, rest = m - (whole << shift), half = (uint64_t)1 << (shift - 1);
  return (uint32_t)whole + (rest > half || (rest == half && (whole & 1)));
}

float hx_to_float(uint64_t bits) {
  const uint32_t sign = (uint32_t)(bits >> 63) << 31;
  const int exponent = (int)(bits >> 52 & 0x7ff) - 1023;
  const uint64_t fraction = bits & 0xfffffffffffffu, mantissa = fraction | (uint64_t)1 << 52;
  if (exponent == 1024 && fraction) return from_bits(0x7fc00000u);
  if (exponent > 127) return from_bits(sign | 0x7f800000u);
  if (exponent >= -126) return from_bits(sign | (shifted(mantissa, 29) + ((uint32_t)(exponent + 126) << 23)));
  return from_bits(sign | (exponent < -150 ? 0 : shifted(mantissa, -97 - exponent)));
}

#if !HX_HAS_DOUBLES
/* A positive number with 53 binary digits: digits * 2^(exponent - 52). */
typedef struct number {
  uint64_t digits;
  int exponent;
} number;

#define TOP_DIGIT ((uint64_t)1 << 52)

static number number_of(uint64_t digits, int exponent) {
  number n;
  for (; !(digits >> 52); --exponent) digits <<= 1;
  n.digits = digits;
  n.exponent = exponent;
  return n;
}

static number rounded(uint64_t digits, int up, int exponent) {
  number n;
  n.digits = digits + (uint64_t)up;
  n.exponent = exponent;
  if (n.digits >> 53) {
    n.digits >>= 1;
    ++n.exponent;
  }
  return n;
}

/* Divides by long division, rounded to nearest even. */
static HX_NOINLINE number divided(number a, number by) {
  uint64_t left = a.digits, quotient = 0;
  int exponent = a.exponent - by.exponent, i;
  if (left < by.digits) {
    left <<= 1;
    --exponent;
  }
  for (i = 0; i < 54; ++i, left <<= 1) {
    quotient <<= 1;
    if (left < by.digits) continue;
    left -= by.digits;
    quotient |= 1;
  }
  return rounded(quotient >> 1, (quotient & 1) && (left || (quotient & 2)), exponent);
}

/* Multiplies by an integer below 2^32. */
static number multiplied(number a, uint32_t by) {
  const uint64_t low = (a.digits & 0xffffffffu) * by, carry = (a.digits >> 32) * by + (low >> 32);
  uint64_t high = carry, rest = low << 32;
  int exponent = a.exponent + 43;
  for (; !(high >> 63); --exponent) { /* high has at most 21 + 32 digits */
    high = high << 1 | rest >> 63;
    rest <<= 1;
  }
  return rounded(high >> 11, (high >> 10 & 1) && ((high & 0x3ff) || rest || (high & 0x800)), exponent);
}

static HX_NOINLINE float float_of(number n, uint32_t sign) {
  if (n.exponent > 1023) n.exponent = 1023;
  if (n.exponent < -1000) n.exponent = -1000;
  return hx_to_float((uint64_t)sign << 32 | (uint64_t)(n.exponent + 1023) << 52 | (n.digits & (TOP_DIGIT - 1)));
}

/* Converts the magnitude of a finite float other than 0. */
static HX_NOINLINE number number_of_float(uint32_t bits) {
  const int exponent = (int)(bits >> 23 & 0xff) - 127;
  const uint64_t digits = (uint64_t)(bits & 0x7fffffu) << 29;
  return exponent > -127 ? number_of(digits | TOP_DIGIT, exponent) : number_of(digits, -126);
}

#endif

#if HX_HAS_DOUBLES
void hx_divide(float a, uint64_t step, float* high, float* rest) {
  double exact, by;
  HX_COPY(&by, &step, 8);
  exact = (double)a / by;
  *rest = 0;
  *high = exact > FLT_MAX ? FLT_MAX : exact < -FLT_MAX ? -FLT_MAX : exact == exact ? (float)exact : 0;
  if (exact <= FLT_MAX && exact >= -FLT_MAX) *rest = (float)(exact - (double)*high);
}

float hx_share(int64_t sum, float scale, int32_t count) {
  return (float)((double)sum * ((double)scale / (double)count));
}
#else
void hx_divide(float a, uint64_t step, float* high, float* rest) {
  const uint32_t bits = hx_u32_of(a), sign = bits & 0x80000000u;
  const int step_exponent = (int)(step >> 52 & 0x7ff) - 1023;
  uint32_t low;
  int32_t lost;
  number n;
  *rest = 0;
  *high = 0;
  if (!(a > 0) && !(a < 0)) return;
  *high = sign ? -FLT_MAX : FLT_MAX;
  if (a > FLT_MAX || a < -FLT_MAX) return;
  n = divided(number_of_float(bits), number_of((step & (TOP_DIGIT - 1)) | TOP_DIGIT, step_exponent));
  if (n.exponent > 127) return;
  *high = float_of(n, sign);
  if (*high > FLT_MAX || *high < -FLT_MAX) *high = sign ? -FLT_MAX : FLT_MAX;
  if (n.exponent < -126) return;
  low = (uint32_t)n.digits & 0x1fffffffu;
  lost = (int32_t)low - (low > 0x10000000u || (low == 0x10000000u && (n.digits >> 29 & 1)) ? 0x20000000 : 0);
  *rest = hx_scale((float)(sign ? -lost : lost), (float)(n.exponent - 52));
}

float hx_share(int64_t sum, float scale, int32_t count) {
  const uint32_t size = (uint32_t)(sum < 0 ? -sum : sum);
  if (size == 0) return 0;
  return float_of(multiplied(divided(number_of_float(hx_u32_of(scale)), number_of((uint64_t)count, 52)), size),
                  sum < 0 ? 0x80000000u : 0);
}

#endif

int32_t hx_sum_block(int32_t k) {
  int32_t block = 512;
  while (block < k / block) block *= 2;
  return block;
}

float hx_sqrt(float x) { return __builtin_sqrtf(x); }

static float power_of_two(int32_t k) {
  const uint32_t bits = (uint32_t)(k + 127) << 23;
  float value;
  HX_COPY(&value, &bits, 4);
  return value;
}

/* Returns x 2^k. */
float hx_scale(float x, float k) {
  const int32_t n = (int32_t)k, half = n >= 0 ? n / 2 : -((1 - n) / 2);
  return x * power_of_two(half) * power_of_two(n - half);
}

/* Returns r = x - k ln 2 with |r| <= ln 2 / 2. */
float hx_reduce_exp(float x, float* k) {
  const float magic = 12582912.0f; /* 1.5 2^23 */
  *k = hx_fma(x, 1.44269504f, magic) - magic;
  return hx_fma(-*k, -2.12194440e-4f, hx_fma(-*k, 0.693359375f, x));
}

/* Approximates (e^r - 1) / r. */
float hx_exp_slope(float r) {
  float p = 0.00139465544f;
  p = hx_fma(p, r, 0.00836664438f);
  p = hx_fma(p, r, 0.0416662805f);
  p = hx_fma(p, r, 0.16666542f);
  p = hx_fma(p, r, 0.5f);
  return hx_fma(p, r, 1.0f);
}

float hx_exp(float x) {
  float k, r;
  if (x != x) return x;
  r = hx_reduce_exp(hx_clamp(x, -150.0f, 100.0f), &k);
  return hx_scale(hx_fma(r, hx_exp_slope(r), 1.0f), k);
}

float hx_log(float x) {
  static const float kPolynomial[] = {0.0691542476f, -0.117898352f, 0.118729658f,  -0.123843431f, 0.142186582f,
                                      -0.16669251f,  0.200022265f,  -0.249999866f, 0.333333105f};
  const int subnormal = x < FLT_MIN;
  const float scaled = subnormal ? x * 33554432.0f : x;
  float e, m, f, p, square, low;
  uint32_t bits, mantissa;
  int i;
  if (!(x > 0)) {
    const float zero = 0;
    return x == 0 ? -1 / zero : zero / zero;
  }
  if (x > FLT_MAX) return x;
  HX_COPY(&bits, &scaled, 4);
  bits -= 0x3f3504f3u;
  e = (float)(hx_signed(bits) >= 0 ? hx_signed(bits) / (1 << 23) : -((((1 << 23) - 1) - hx_signed(bits)) / (1 << 23))) -
      (subnormal ? 25.0f : 0.0f);
  mantissa = (bits & 0x7fffffu) + 0x3f3504f3u;
  HX_COPY(&m, &mantissa, 4);
  f = m - 1;
  p = kPolynomial[0];
  for (i = 1; i < 9; ++i) p = hx_fma(p, f, kPolynomial[i]);
  square = f * f;
  low = hx_fma(e, -2.12194440e-4f, square * f * p);
  return hx_fma(e, 0.693359375f, f + hx_fma(-0.5f, square, low));
}

float hx_log1p(float x) {
  const float u = 1.0f + x, lost = x - (u - 1.0f);
  if (u == 0 || u > FLT_MAX) return hx_log(u);
  if (x == 0) return x;
  return hx_log(u) + lost / u;
}

/* Returns log2 of a positive finite number, to 2^-50: its exponent plus 2 atanh(f) / ln 2, where f = (m - 1) / (m +
 * 1) for its mantissa m between sqrt(1/2) and sqrt(2). */
static double binary_log(float x) {
  static const double kOdd[] = {1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3};
  const int subnormal = x < FLT_MIN;
  const float scaled = subnormal ? x * 33554432.0f : x; /* 2^25 */
  uint32_t bits, mantissa;
  int32_t e, i;
  float m;
  double f, square, p = 1.0 / 17;
  HX_COPY(&bits, &scaled, 4);
  bits -= 0x3f3504f3u;
  e = hx_signed(bits) >= 0 ? hx_signed(bits) / (1 << 23) : -((((1 << 23) - 1) - hx_signed(bits)) / (1 << 23));
  mantissa = (bits & 0x7fffffu) + 0x3f3504f3u;
  HX_COPY(&m, &mantissa, 4);
  f = ((double)m - 1) / ((double)m + 1);
  square = f * f;
  for (i = 0; i < 7; ++i) p = p * square + kOdd[i];
  return (double)(e - (subnormal ? 25 : 0)) + (f + f * square * p) * 2.8853900817779268;
}

/* Returns 2^t for t from -200 to 200. */
static double binary_exp(double t) {
  static const double kTaylor[] = {1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120,
                                   1.0 / 24,      1.0 / 6,      0.5,         1,          1};
  const int32_t k = (int32_t)(t < 0 ? t - 0.5 : t + 0.5);
  const double r = (t - (double)k) * 0.69314718055994531;
  const uint64_t power = (uint64_t)(k + 1023) << 52;
  double p = 1.0 / 39916800, scale;
  int i;
  for (i = 0; i < 11; ++i) p = p * r + kTaylor[i];
  HX_COPY(&scale, &power, 8);
  return p * scale;
}

double hx_exp_wide(double x) {
  const double t = x * 1.4426950408889634;
  return binary_exp(t > 200 ? 200 : t < -200 ? -200 : t);
}

/* Returns x^y as the host does: x x and x x x for the exponents 2 and 3, and C's rules for infinities, zeros and
 * NaN. */
float hx_power(float x, float y) {
  const int is_whole = hx_rounded(y) == y || y >= 8388608.0f || y <= -8388608.0f;
  const int is_odd = is_whole && y < 16777216.0f && y > -16777216.0f && ((int32_t)y & 1);
  const float size = x < 0 ? -x : x;
  uint32_t bits;
  int is_negative;
  double t;
  float result;
  if (y == 2) return x * x;
  if (y == 3) return x * x * x;
  if (y == 0 || x == 1) return 1;
  if (x != x || y != y) return x + y;
  HX_COPY(&bits, &x, 4);
  is_negative = (int)(bits >> 31) && is_odd;
  if (x < 0 && !is_whole && size <= FLT_MAX && y <= FLT_MAX && y >= -FLT_MAX) {
    const float zero = 0;
    return zero / zero;
  }
  if (size == 0 || size > FLT_MAX || y > FLT_MAX || y < -FLT_MAX) {
    const int grows = size == 1 ? -1 : (size > 1) == (y > 0);
    result = grows < 0 ? 1 : grows ? HX_INFINITY : 0;
  } else {
    t = (double)y * binary_log(size);
    result = (float)binary_exp(t > 200 ? 200 : t < -200 ? -200 : t);
  }
  return is_negative ? -result : result;
}
