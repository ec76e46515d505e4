/* TFLite's arithmetic: int32 sums through a multiplier in Q0.31 and a shift, as csrc/cpu/quantized/q31.h. */
#ifndef HEXANE_Q31_H_
#define HEXANE_Q31_H_

#include "../internal.h"

#define HX_LEAST_SHIFT (-31)
#define HX_MOST_SHIFT 30

/* A shift to the left by `left` saturates; the product is rounded to nearest, halves up; the shift to the right by
 * `right`, 0 to 31, to nearest, halves away from 0. */
static inline int32_t hx_rescaled(int32_t sum, int32_t multiplier, int32_t left, int32_t right) {
  const int64_t moved = (int64_t)sum * ((int64_t)1 << left);
  const int64_t wide = moved > INT32_MAX ? INT32_MAX : moved < INT32_MIN ? INT32_MIN : moved;
  const uint32_t bits = (uint32_t)((uint64_t)(wide * multiplier + ((int64_t)1 << 30)) >> 31);
  const uint32_t sign = (uint32_t)0 - (bits >> 31);
  const uint32_t size = (((bits ^ sign) - sign) + (((uint32_t)1 << right) >> 1)) >> right;
  return (int32_t)((size ^ sign) - sign);
}

/* The digits of a double, 53 at most, in two halves. */
#define HX_DIGITS 53
#define HX_LOW_DIGITS 22

/* sum * (high 2^22 + low) 2^(shift - 53) as a double has it, rounded to an integer, halves away from 0, 2^30 at most.
 *
 * The product of the sizes is hi 2^31 + lo in units of 2^(shift - 62). Rounded as a whole number it is the result, with
 * one exception: a product just below a half (k + 0.5), which the double rounds up to the half. That happens up to half
 * a unit in the last place below the half. At exactly half a unit the double goes to the even number, which is the
 * half. Of halves from 2^n up to 2^(n + 1) this distance is 2^(n - 53). */
static inline int32_t hx_scaled_once(int32_t sum, int32_t high, int32_t low, int32_t shift) {
  const uint64_t size = sum < 0 ? (uint64_t)0 - (uint64_t)sum : (uint64_t)sum;
  const uint64_t rest = size * ((uint64_t)low << (31 - HX_LOW_DIGITS));
  const uint64_t hi = size * (uint64_t)high + (rest >> 31), lo = rest & 0x7fffffffu;
  const uint64_t half = (uint64_t)1 << (30 - shift);
  uint64_t whole = (hi + half) >> (31 - shift);
  const uint64_t tie = (2 * whole + 1) * half, gap = tie - hi;
  if (gap <= 1 << 9) { /* else it is too far */
    const uint64_t far = gap << 31, last = tie - 1;
    int32_t digits = 0;
    while (digits < 64 && last >> digits) ++digits;
    whole += digits >= 23 && far - lo <= (uint64_t)1 << (digits - 23);
  }
  whole = whole < (1u << 30) ? whole : 1u << 30;
  return sum < 0 ? -(int32_t)whole : (int32_t)whole;
}

/* Attributes from `word` on: output_zero, low, high. */
hx_status hx_check_clamp(const hx_call* call, uint32_t word);
void hx_read_clamp(const hx_call* call, uint32_t word, hx_dtype dtype, int32_t* zero, int32_t* low, int32_t* high);

#endif
