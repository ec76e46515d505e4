/* TFLite's arithmetic: rescales int32 sums by a multiplier in Q0.31 and a shift, as in csrc/cpu/quantized/q31.h. */
#ifndef HEXANE_Q31_H_
#define HEXANE_Q31_H_

#include "../internal.h"

#define HX_LEAST_SHIFT (-31)
#define HX_MOST_SHIFT 30

/* Rescales a sum. The shift to the left by `left` saturates. The product is rounded to nearest, halves up. The shift
 * to the right by `right`, 0 to 31, is rounded to nearest, halves away from 0. */
static inline int32_t hx_rescaled(int32_t sum, int32_t multiplier, int32_t left, int32_t right) {
  const int64_t moved = (int64_t)sum * ((int64_t)1 << left);
  const int64_t wide = moved > INT32_MAX ? INT32_MAX : moved < INT32_MIN ? INT32_MIN : moved;
  const uint32_t bits = (uint32_t)((uint64_t)(wide * multiplier + ((int64_t)1 << 30)) >> 31);
  const uint32_t sign = (uint32_t)0 - (bits >> 31);
  const uint32_t size = (((bits ^ sign) - sign) + (((uint32_t)1 << right) >> 1)) >> right;
  return (int32_t)((size ^ sign) - sign);
}

/* A double's digits, at most 53, are split in two parts. */
#define HX_DIGITS 53
#define HX_LOW_DIGITS 22

/* Returns sum * (high 2^22 + low) 2^(shift - 53), rounded to double and then to an integer, halves away from 0, at most
 * 2^30.
 *
 * The product of the magnitudes is hi 2^31 + lo in units of 2^(shift - 62). Rounding the product to an integer gives
 * the result, with one exception: a product just below a half (k + 0.5), which rounding to double moves up to the
 * half. Rounding moves the product up if it is at most half a unit in the last place below the half. At exactly half
 * a unit, rounding to double takes the even neighbour, which is k + 0.5. Half a unit is 2^(n - 53) for halves from 2^n
 * up to 2^(n + 1). */
static inline int32_t hx_scaled_once(int32_t sum, int32_t high, int32_t low, int32_t shift) {
  const uint64_t size = sum < 0 ? (uint64_t)0 - (uint64_t)sum : (uint64_t)sum;
  const uint64_t rest = size * ((uint64_t)low << (31 - HX_LOW_DIGITS));
  const uint64_t hi = size * (uint64_t)high + (rest >> 31), lo = rest & 0x7fffffffu;
  const uint64_t half = (uint64_t)1 << (30 - shift);
  uint64_t whole = (hi + half) >> (31 - shift);
  const uint64_t tie = (2 * whole + 1) * half, gap = tie - hi;
  if (gap <= 1 << 9) { /* with a larger gap the product cannot move up */
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
