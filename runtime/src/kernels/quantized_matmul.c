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
  hx_column columns[HX_BLOCK];
  uint32_t sums[HX_BLOCK];
  const uint8_t* extra[4] = {0, 0, 0, 0};
  int32_t row, n, num, i;
  (void)axis;
  (void)range;
  hx_read_quantized(call, 1, &q);
  if (!hx_begin_matmul(call, 0, hx_attr_i(call, 0) != 0, &m, &walk)) return;
  for (n = 0; n < m.n; n += num) {
    num = hx_min(HX_BLOCK, m.n - n);
    for (i = 0; i < num; ++i) hx_read_column(&q, n + i, &columns[i]);
    do {
      for (row = 0; row < m.m; ++row) {
        uint8_t* to = walk.out + (size_t)row * (size_t)m.m_step_out + (size_t)n * (size_t)m.item_out;
        for (i = 0; i < num; ++i) sums[i] = columns[i].start;
        hx_quantized_dots(&q, columns, num, walk.x + (size_t)row * (size_t)m.m_step_x, m.k_step_x,
                          walk.y + (size_t)n * (size_t)m.n_step_y, m.n_step_y, m.k_step_y, m.k, sums);
        for (i = 0; i < num; ++i) {
          hx_matmul_extras(&m, &walk, &q.requant.epilogue, row, n + i, extra);
          hx_store_sum(&q.requant, &columns[i], sums[i], extra, to + i * m.item_out);
        }
      }
    } while (hx_next_matrix(&m, &walk));
  }
}

const hx_kernel hx_kernel_quantized_matmul = {
    "quantized_matmul", 1 + HX_QUANTIZED_WORDS, 0, HX_NEEDS_ALL, HX_CHECK(check), 0, run};
