/* matmul in fp32, a bias, an epilogue. */
#include "matmul.h"

enum { TRANSPOSE_X, TRANSPOSE_Y, EPILOGUE };

HX_CHECK_FUNCTION hx_status check(const hx_call* call) {
  hx_view x, y, bias, out;
  int axis;
  const hx_status status = hx_check_matmul(call, hx_attr_i(call, TRANSPOSE_X) != 0, hx_attr_i(call, TRANSPOSE_Y) != 0);
  if (status != HX_OK) return status;
  hx_input(call, 0, &x);
  hx_input(call, 1, &y);
  hx_output(call, 0, &out);
  if (x.dtype != HX_FP32 || y.dtype != HX_FP32 || out.dtype != HX_FP32) return hx_refuse(call, "dtype: need fp32");
  if (hx_input(call, 2, &bias)) {
    if (bias.dtype != HX_FP32 || bias.rank < 1 || bias.shape[bias.rank - 1] != out.shape[out.rank - 1])
      return hx_refuse(call, "bias: need one fp32 for each column");
    for (axis = 0; axis < bias.rank - 1; ++axis)
      if (bias.shape[axis] != 1) return hx_refuse(call, "bias: need extent 1 along all axes but the last");
  }
  return hx_check_epilogue(call, EPILOGUE, 1);
}

static float dot(const uint8_t* x, int32_t x_step, const uint8_t* y, int32_t y_step, int32_t k, int32_t block) {
  float total = 0, part = 0;
  int32_t i, terms = 0;
  for (i = 0; i < k; ++i, x += x_step, y += y_step) {
    part = hx_multiply_add(hx_f32(x), hx_f32(y), part);
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
  hx_view bias;
  int32_t row, n;
  const int has_bias = hx_input(call, 2, &bias);
  (void)axis;
  (void)range;
  hx_read_epilogue(call, EPILOGUE, &epilogue);
  if (!hx_begin_matmul(call, hx_attr_i(call, TRANSPOSE_X) != 0, hx_attr_i(call, TRANSPOSE_Y) != 0, &m, &walk)) return;
  do {
    for (row = 0; row < m.m; ++row)
      for (n = 0; n < m.n; ++n) {
        float sum = dot(walk.x + (size_t)row * (size_t)m.m_step_x, m.k_step_x, walk.y + (size_t)n * (size_t)m.n_step_y,
                        m.k_step_y, m.k, hx_sum_block(hx_max(m.k, 1)));
        if (has_bias) sum += hx_f32(bias.data + (size_t)n * (size_t)bias.strides[bias.rank - 1]);
        hx_matmul_extras(&m, &walk, &epilogue, row, n, extra);
        hx_put_f32(walk.out + (size_t)row * (size_t)m.m_step_out + (size_t)n * 4,
                   hx_apply_epilogue(&epilogue, sum, extra));
      }
  } while (hx_next_matrix(&m, &walk));
}

const hx_kernel hx_kernel_matmul = {"matmul", 2 + HX_EPILOGUE_WORDS, 0, HX_NEEDS_ALL, HX_CHECK(check), 0, run};
