/* encoded_matmul: fp32 [.., M, K] x a weight [N, K] in integers or indices of 4 or 8 bits, which are decoded one by
 * one. */
#include "matmul.h"

enum { BITS, PALETTE, TRANSPOSE_X, EPILOGUE };
enum { X, WEIGHT, NUMBERS, BIAS };

HX_CHECK_FUNCTION hx_status check(const hx_call* call) {
  hx_view x, weight, numbers, bias, out;
  const int64_t bits = hx_attr_i(call, BITS);
  const int transpose_x = hx_attr_i(call, TRANSPOSE_X) != 0;
  int32_t k, rows;
  if (!hx_input(call, X, &x) || !hx_input(call, WEIGHT, &weight) || !hx_input(call, NUMBERS, &numbers))
    return hx_refuse(call, "need x, a weight and its numbers");
  hx_output(call, 0, &out);
  if (x.dtype != HX_FP32 || numbers.dtype != HX_FP32 || out.dtype != HX_FP32)
    return hx_refuse(call, "dtype: need fp32");
  if (weight.item != 1) return hx_refuse(call, "weight: need bytes");
  if (bits != 4 && bits != 8) return hx_refuse(call, "bits: need 4 or 8");
  if (x.rank < 2 || weight.rank != 2 || numbers.rank != 2 || out.rank != x.rank)
    return hx_refuse(call, "ranks: need 2 to 8, 2, 2, and that of x for the output");
  if (!hx_is_dense_inside(&x) || !hx_is_dense_inside(&weight) || !hx_is_dense_inside(&numbers) ||
      !hx_is_dense_inside(&out))
    return hx_refuse(call, "need dense innermost axes");
  k = x.shape[x.rank - (transpose_x ? 2 : 1)];
  if (x.shape[x.rank - (transpose_x ? 1 : 2)] != out.shape[out.rank - 2] ||
      weight.shape[0] != out.shape[out.rank - 1] || weight.shape[1] != (bits == 4 ? k / 2 + k % 2 : k))
    return hx_refuse(call, "shapes: need M x K and N x K numbers for M x N");
  rows = numbers.shape[0];
  if (hx_attr_i(call, PALETTE) != 0 ? rows < 1 || numbers.shape[1] < 1 || weight.shape[0] % rows != 0
                                    : rows < 1 || numbers.shape[1] != weight.shape[0] || k % rows != 0)
    return hx_refuse(call, "numbers: need tables of equal runs of columns, or scales of equal blocks of each column");
  if (hx_input(call, BIAS, &bias)) {
    if (bias.dtype != HX_FP32 || bias.rank < 1 || bias.shape[bias.rank - 1] != out.shape[out.rank - 1])
      return hx_refuse(call, "bias: need one fp32 for each column");
    for (k = 0; k < bias.rank - 1; ++k)
      if (bias.shape[k] != 1) return hx_refuse(call, "bias: need all along its last axis");
  }
  x.rank -= 2;
  out.rank -= 2;
  if (!hx_broadcasts(&x, &out)) return hx_refuse(call, "leading axes: need 1 or the output's extent");
  return hx_check_epilogue(call, EPILOGUE, 1);
}

/* A column of the weight. */
typedef struct {
  const uint8_t *codes, *numbers;
  int32_t step; /* of scales: bytes from one block to the next */
  int32_t block, last;
  int four_bits, palette;
} hx_column;

static float number(const hx_column* c, int32_t k) {
  int32_t code = c->four_bits ? (k % 2 ? c->codes[k / 2] >> 4 : c->codes[k / 2] & 15) : c->codes[k];
  if (c->palette) return hx_f32(c->numbers + (size_t)hx_min(code, c->last) * 4);
  code = c->four_bits ? (code ^ 8) - 8 : hx_i8(c->codes + k);
  return (float)code * hx_f32(c->numbers + (size_t)(k / c->block) * (size_t)c->step);
}

static float dot(const uint8_t* x, int32_t x_step, const hx_column* column, int32_t k, int32_t block) {
  float total = 0, part = 0;
  int32_t i, terms = 0;
  for (i = 0; i < k; ++i, x += x_step) {
    part = hx_multiply_add(hx_f32(x), number(column, i), part);
    if (++terms < block) continue;
    total += part;
    part = 0;
    terms = 0;
  }
  return total + part;
}

static void run(const hx_call* call, int axis, hx_range range) {
  const uint8_t* extra[4] = {0, 0, 0, 0};
  hx_matmul m;
  hx_epilogue epilogue;
  hx_rows walk;
  hx_view bias, numbers;
  hx_column column;
  int32_t row, n, columns;
  const int has_bias = hx_input(call, BIAS, &bias);
  (void)axis;
  (void)range;
  hx_read_epilogue(call, EPILOGUE, &epilogue);
  if (!hx_begin_matmul(call, hx_attr_i(call, TRANSPOSE_X) != 0, 1, &m, &walk)) return;
  hx_input(call, NUMBERS, &numbers);
  column.four_bits = hx_attr_i(call, BITS) == 4;
  column.palette = hx_attr_i(call, PALETTE) != 0;
  column.step = numbers.strides[0];
  column.block = hx_max(m.k / numbers.shape[0], 1);
  column.last = numbers.shape[1] - 1;
  columns = hx_max(m.n / numbers.shape[0], 1); /* of one table */
  do {
    for (n = 0; n < m.n; ++n) {
      column.codes = walk.y + (size_t)n * (size_t)m.n_step_y;
      column.numbers =
          numbers.data + (column.palette ? (size_t)(n / columns) * (size_t)numbers.strides[0] : (size_t)n * 4);
      for (row = 0; row < m.m; ++row) {
        float sum =
            dot(walk.x + (size_t)row * (size_t)m.m_step_x, m.k_step_x, &column, m.k, hx_sum_block(hx_max(m.k, 1)));
        if (has_bias) sum += hx_f32(bias.data + (size_t)n * (size_t)bias.strides[bias.rank - 1]);
        hx_matmul_extras(&m, &walk, &epilogue, row, n, extra);
        hx_put_f32(walk.out + (size_t)row * (size_t)m.m_step_out + (size_t)n * 4,
                   hx_apply_epilogue(&epilogue, sum, extra));
      }
    }
  } while (hx_next_matrix(&m, &walk));
}

const hx_kernel hx_kernel_encoded_matmul = {
    "encoded_matmul", 3 + HX_EPILOGUE_WORDS, 0, HX_NEEDS_ALL, HX_CHECK(check), 0, run};
