/* Shared by quantised products: sums of products of 8-bit integers, and their conversion to results. The operands
 * are x, y, scale, bias, x_zero, y_zero, and the attributes end with output_scale, output_zero, epilogue. In
 * TFLite's arithmetic (q31) the scale is a multiplier: int32, or as int64 the digits of a double. The multiplier's
 * shift is the operand after y_zero, and the attributes end with output_zero, low, high. */
#ifndef HEXANE_QUANTIZED_H_
#define HEXANE_QUANTIZED_H_

#include "q31.h"
#include "window.h"

#define HX_QUANTIZED_INPUTS 6u
#define HX_QUANTIZED_WORDS (2u + HX_EPILOGUE_WORDS)
#define HX_Q31_WORDS 3u

#define HX_BLOCK 32  /* Columns that are computed together. */
#define HX_CHUNK 128 /* Terms of a sum that are widened together. */

/* How sums become stored results. If the epilogue only clamps, an 8-bit integer is
 *   round(sum * scale + bias) + zero, saturated,      with scale and bias in steps of the output, scale as two floats.
 * With another epilogue or an fp32 result, f = sum * scale + bias, then the epilogue. An fp32 result is f, an 8-bit
 * result round(f * inverse_scale) + zero. */
typedef struct hx_requant {
  hx_dtype dtype;
  int in_steps, in_bounds;
  uint64_t output_scale; /* the bits of a double */
  float inverse_scale, zero, low, high;
  hx_epilogue epilogue;
} hx_requant;

/* The constants of adjacent output columns. */
typedef struct hx_columns {
  int32_t first, num; /* num: 1 to HX_BLOCK */
  uint32_t start[HX_BLOCK];
  union {
    struct {
      float scale[HX_BLOCK], rest[HX_BLOCK], bias[HX_BLOCK];
    } real;
    struct {
      int32_t multiplier[HX_BLOCK], left[HX_BLOCK], right[HX_BLOCK]; /* left and right: the parts of the shift */
    } q31;
    struct {
      int32_t high[HX_BLOCK], low[HX_BLOCK], shift[HX_BLOCK];
    } digits;
  } to;
} hx_columns;

/* An operand with one value, or one for each column. */
typedef struct hx_vector {
  const uint8_t* data; /* null: absent */
  int32_t step;
  hx_dtype dtype;
} hx_vector;

typedef struct hx_quantized hx_quantized;
struct hx_quantized {
  int32_t x_zero;
  uint8_t x_flip, y_flip; /* 0x80 if the operand is unsigned: flipping the sign bit gives a signed byte, 128 less */
  hx_vector scale, bias, y_zero, shift;
  hx_requant requant;                             /* For q31 only the epilogue is used. */
  int32_t output_zero, low, high, item;           /* Only q31 uses output_zero, low and high. */
  void (*read)(const hx_quantized*, hx_columns*); /* Reads the constants of the columns. */
  /* Stores the sums of a pixel or row; extra[i] points to the number that slot i of the epilogue adds to the first
   * column. */
  void (*store)(const hx_quantized*, const hx_columns*, const uint32_t* sums, const uint8_t* const* extra, uint8_t* to);
};

/* Returns x_flip or y_flip; 0 in a build without uint8. */
static inline uint8_t hx_flip(uint8_t flip) { return hx_has_dtype(HX_UINT8) ? flip : 0; }

hx_status hx_check_quantized(const hx_call* call, uint32_t word, int32_t columns);
hx_status hx_check_q31(const hx_call* call, uint32_t word, int32_t columns);
void hx_read_quantized(const hx_call* call, uint32_t word, hx_quantized* q);
void hx_read_q31(const hx_call* call, uint32_t word, hx_quantized* q);

/* Subtracts the zero point from n terms of x and stores them as int16 from to[at] on. */
void hx_widen(const hx_quantized* q, const uint8_t* x, int32_t n, int16_t* to, int32_t at);
void hx_widen_zeros(int32_t n, int16_t* to, int32_t at);

/* Adds n products to the sums of each column, for one or two pixels. The terms of the second pixel are HX_CHUNK
 * elements further, its sums HX_BLOCK elements. The terms of column i of y begin `y_next` bytes after the terms of
 * column i - 1. The terms of a column are `y_step` bytes apart. */
void hx_add_products(const hx_quantized* q, const hx_columns* columns, const int16_t* x, int pixels, int32_t n,
                     const uint8_t* y, int32_t y_next, int32_t y_step, uint32_t* sums);

/* Runs a convolution, or a range of an axis of its output. */
void hx_run_quantized(hx_conv* c, const hx_quantized* q, const hx_extras* extras, int axis, hx_range range);

#endif
