/* quantized_matmul: [.., M, K] x [.., K, N] of 8-bit integers -> [.., M, N], with NumPy broadcasting. */
#include "matmul.h"
#include "quantized.h"

HX_CHECK_FUNCTION hx_status check(const hx_call* call) {
  hx_view out;
  const hx_status status = hx_check_matmul(call, 0, hx_attr_i(call, 0) != 0);
  if (status != HX_OK) return status;
  hx_output(call, 0, &out);
  return hx_check_quantized(call, 1, out.shape[out.rank - 1]);
}

static void run(const hx_call* call, int axis, hx_range range) {
  hx_matmul m;
  hx_quantized q;
  hx_rows walk;
  int32_t row, n;
  const uint8_t* extra[4] = {0, 0, 0, 0};
  (void)axis;
  (void)range;
  hx_read_quantized(call, 1, &q);
  if (!hx_begin_matmul(call, 0, hx_attr_i(call, 0) != 0, &m, &walk)) return;
  for (n = 0; n < m.n; ++n) {
    hx_column column;
    hx_read_column(&q, n, &column);
    do {
      for (row = 0; row < m.m; ++row) {
        const uint8_t* x = walk.x + (size_t)row * (size_t)m.m_step_x;
        const uint8_t* y = walk.y + (size_t)n * (size_t)m.n_step_y;
        const uint32_t sum = column.start + hx_quantized_dot(&q, column.y_zero, x, m.k_step_x, y, m.k_step_y, m.k);
        hx_matmul_extras(&m, &walk, &q.requant.epilogue, row, n, extra);
        hx_store_sum(&q.requant, &column, sum, extra,
                     walk.out + (size_t)row * (size_t)m.m_step_out + (size_t)n * (size_t)m.item_out);
      }
    } while (hx_next_matrix(&m, &walk));
  }
}

const hx_kernel hx_kernel_quantized_matmul = {
    "quantized_matmul", 1 + HX_QUANTIZED_WORDS, 0, HX_NEEDS_ALL, HX_CHECK(check), 0, run};
