/* Weights [N, K] in integers or indices of 4 or 8 bits, which are decoded one by one. */
#ifndef HEXANE_ENCODED_H_
#define HEXANE_ENCODED_H_

#include "../internal.h"

/* Checks a weight of n columns of k terms. The first two words of the weight's attributes are the bits of a code (4 or
 * 8), and 1 if `numbers` has tables. */
HX_CHECK_FUNCTION hx_status hx_check_encoded(const hx_call* call, const hx_view* weight, const hx_view* numbers,
                                             int32_t k, int32_t n) {
  const int64_t bits = hx_attr_i(call, 0);
  const int32_t rows = numbers->rank == 2 ? numbers->shape[0] : 0;
  if (numbers->dtype != HX_FP32) return hx_refuse(call, "dtype: need fp32");
  if (weight->item != 1) return hx_refuse(call, "weight: need bytes");
  if (bits != 4 && bits != 8) return hx_refuse(call, "bits: need 4 or 8");
  if (weight->rank != 2 || numbers->rank != 2) return hx_refuse(call, "ranks: need 2 for a weight and its numbers");
  if (!hx_is_dense_inside(weight) || !hx_is_dense_inside(numbers)) return hx_refuse(call, "need dense innermost axes");
  if (weight->shape[0] != n || weight->shape[1] != (bits == 4 ? k / 2 + k % 2 : k))
    return hx_refuse(call, "shapes: need a weight of N x K numbers");
  if (hx_attr_i(call, 1) != 0 ? rows < 1 || numbers->shape[1] < 1 || n % rows != 0
                              : rows < 1 || numbers->shape[1] != n || k % rows != 0)
    return hx_refuse(call, "numbers: need tables of equal runs of columns, or scales of equal blocks of each column");
  return HX_OK;
}

/* Checks that a bias, if there is one, has one fp32 per column along its last axis. */
HX_CHECK_FUNCTION hx_status hx_check_encoded_bias(const hx_call* call, uint32_t input, int32_t n) {
  hx_view bias;
  int axis;
  if (!hx_input(call, input, &bias)) return HX_OK;
  if (bias.dtype != HX_FP32 || bias.rank < 1 || bias.shape[bias.rank - 1] != n)
    return hx_refuse(call, "bias: need one fp32 for each column");
  for (axis = 0; axis < bias.rank - 1; ++axis)
    if (bias.shape[axis] != 1) return hx_refuse(call, "bias: need extent 1 along all axes but the last");
  return HX_OK;
}

/* A column of the weight. */
typedef struct hx_column {
  const uint8_t *codes, *numbers;
  int32_t step; /* bytes from the scale of one block to the next */
  int32_t block, last;
  int four_bits, palette;
} hx_column;

/* Sets all fields that do not depend on the column. */
static inline void hx_read_columns(const hx_call* call, const hx_view* numbers, int32_t k, hx_column* column) {
  column->four_bits = hx_attr_i(call, 0) == 4;
  column->palette = hx_attr_i(call, 1) != 0;
  column->step = numbers->strides[0];
  column->block = hx_max(k / numbers->shape[0], 1);
  column->last = numbers->shape[1] - 1;
}

/* Sets the addresses of column i of n. */
static inline void hx_set_column(const hx_view* weight, const hx_view* numbers, int32_t i, int32_t n,
                                 hx_column* column) {
  const int32_t columns = hx_max(n / numbers->shape[0], 1); /* columns that share a table */
  column->codes = weight->data + (size_t)i * (size_t)weight->strides[0];
  column->numbers =
      numbers->data + (column->palette ? (size_t)(i / columns) * (size_t)numbers->strides[0] : (size_t)i * 4);
}

/* Returns term k of a column, decoded. */
static inline float hx_number(const hx_column* c, int32_t k) {
  int32_t code = c->four_bits ? (k % 2 ? c->codes[k / 2] >> 4 : c->codes[k / 2] & 15) : c->codes[k];
  if (c->palette) return hx_f32(c->numbers + (size_t)hx_min(code, c->last) * 4);
  code = c->four_bits ? (code ^ 8) - 8 : hx_i8(c->codes + k);
  return (float)code * hx_f32(c->numbers + (size_t)(k / c->block) * (size_t)c->step);
}

#endif
