/* encoded_matmul: fp32 [.., M, K] x a weight [N, K] in integers or indices of 4 or 8 bits, which are decoded one by
 * one. */
#include "encoded.h"
#include "matmul.h"

enum { BITS, PALETTE, TRANSPOSE_X, EPILOGUE };
enum { X, WEIGHT, NUMBERS, BIAS };

HX_CHECK_FUNCTION hx_status check(const hx_call* call) {
  hx_view x, weight, numbers, out;
  hx_status status;
  const int transpose_x = hx_attr_i(call, TRANSPOSE_X) != 0;
  if (!hx_input(call, X, &x) || !hx_input(call, WEIGHT, &weight) || !hx_input(call, NUMBERS, &numbers))
    return hx_refuse(call, "need x, a weight and its numbers");
  hx_output(call, 0, &out);
  if (x.dtype != HX_FP32 || out.dtype != HX_FP32) return hx_refuse(call, "dtype: need fp32");
  if (x.rank < 2 || out.rank != x.rank) return hx_refuse(call, "ranks: need 2 to 8, and that of x for the output");
  if (!hx_is_dense_inside(&x) || !hx_is_dense_inside(&out)) return hx_refuse(call, "need dense innermost axes");
  if (x.shape[x.rank - (transpose_x ? 1 : 2)] != out.shape[out.rank - 2])
    return hx_refuse(call, "shapes: need M x K and N x K numbers for M x N");
  status = hx_check_encoded(call, &weight, &numbers, x.shape[x.rank - (transpose_x ? 2 : 1)], out.shape[out.rank - 1]);
  if (status == HX_OK) status = hx_check_encoded_bias(call, BIAS, out.shape[out.rank - 1]);
  if (status != HX_OK) return status;
  x.rank -= 2;
  out.rank -= 2;
  if (!hx_broadcasts(&x, &out)) return hx_refuse(call, "leading axes: need 1 or the output's extent");
  return hx_check_epilogue(call, EPILOGUE, 1);
}

static float dot(const uint8_t* x, int32_t x_step, const hx_column* column, int32_t k, int32_t block) {
  float total = 0, part = 0;
  int32_t i, terms = 0;
  for (i = 0; i < k; ++i, x += x_step) {
    part = hx_multiply_add(hx_f32(x), hx_number(column, i), part);
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
  hx_view bias, weight, numbers;
  hx_column column;
  int32_t row, n;
  const int has_bias = hx_input(call, BIAS, &bias);
  (void)axis;
  (void)range;
  hx_read_epilogue(call, EPILOGUE, &epilogue);
  if (!hx_begin_matmul(call, hx_attr_i(call, TRANSPOSE_X) != 0, 1, &m, &walk)) return;
  hx_input(call, WEIGHT, &weight);
  hx_input(call, NUMBERS, &numbers);
  hx_read_columns(call, &numbers, m.k, &column);
  do {
    for (n = 0; n < m.n; ++n) {
      hx_set_column(&weight, &numbers, n, m.n, &column);
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
