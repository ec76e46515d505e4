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

/* Attributes from `word` on: output_zero, low, high. */
hx_status hx_check_clamp(const hx_call* call, uint32_t word);
void hx_read_clamp(const hx_call* call, uint32_t word, hx_dtype dtype, int32_t* zero, int32_t* low, int32_t* high);

#endif
