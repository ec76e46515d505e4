/* Shared by quantised products: sums of 8-bit integers, and their way to the output. The operands are x, y, scale,
 * bias, x_zero, y_zero; the attributes end with output_scale, output_zero, epilogue. */
#ifndef HEXANE_QUANTIZED_H_
#define HEXANE_QUANTIZED_H_

#include "../internal.h"

#define HX_QUANTIZED_INPUTS 6u
#define HX_QUANTIZED_WORDS (2u + HX_EPILOGUE_WORDS)

/* From sums to what is stored. Where the epilogue only clamps, an 8-bit integer is
 *   round(sum * scale + bias) + zero, saturated,      with scale and bias in steps of the output, scale as two floats.
 * Else f = sum * scale + bias, the epilogue, and then fp32, or round(f * inverse_scale) + zero. */
typedef struct hx_requant {
  hx_dtype dtype;
  int in_steps, in_bounds;
  uint64_t output_scale; /* the bits of a double */
  float inverse_scale, zero, low, high;
  hx_epilogue epilogue;
} hx_requant;

/* What one output column needs. */
typedef struct hx_column {
  uint32_t start;
  int32_t y_zero;
  float scale, rest, bias;
} hx_column;

/* One value, or one for each column. */
typedef struct hx_vector {
  const uint8_t* data; /* null: none */
  int32_t step;
  hx_dtype dtype;
} hx_vector;

/* x_zero, and how the bytes of x and y are read. */
typedef struct hx_quantized {
  int32_t x_zero;
  uint8_t x_flip, y_flip; /* 0x80 where the operand is unsigned: then it is read as a signed byte, 128 less */
  hx_requant requant;
  hx_vector scale, bias, y_zero;
} hx_quantized;

hx_status hx_check_quantized(const hx_call* call, uint32_t word, int32_t columns);
void hx_read_quantized(const hx_call* call, uint32_t word, hx_quantized* q);
void hx_read_column(const hx_quantized* q, int32_t column, hx_column* to);

/* Adds to each of `num` sums, up to HX_BLOCK, those of (x - x_zero) (y - y_zero) over n elements: y is `y_next` bytes
 * further for each sum, its elements `y_step` bytes apart; those of x are `x_step` apart. */
#define HX_BLOCK 4
void hx_quantized_dots(const hx_quantized* q, const hx_column* columns, int num, const uint8_t* x, int32_t x_step,
                       const uint8_t* y, int32_t y_next, int32_t y_step, int32_t n, uint32_t* sums);

void hx_store_sum(const hx_requant* requant, const hx_column* column, uint32_t sum, const uint8_t* const* extra,
                  uint8_t* to);

#endif
