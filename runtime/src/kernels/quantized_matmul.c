/* quantized_matmul, q31_matmul: [.., M, K] x [.., K, N] of 8-bit integers -> [.., M, N], with NumPy broadcasting;
 * scaled by TFLite's arithmetic in q31_matmul. */
#include "matmul.h"
#include "quantized.h"

static HX_NOINLINE void run_rows(const hx_matmul* m, const hx_rows* walk, const hx_quantized* q,
                                 const hx_columns* columns, int32_t row, int rows) {
  int16_t x[2 * HX_CHUNK];
  uint32_t sums[2 * HX_BLOCK];
  const uint8_t* extra[4] = {0, 0, 0, 0};
  const int32_t first = columns->first;
  int32_t k, p;
  for (p = 0; p < rows; ++p) memcpy(sums + p * HX_BLOCK, columns->start, sizeof columns->start);
  for (k = 0; k < m->k; k += HX_CHUNK) {
    const int32_t n = hx_min(HX_CHUNK, m->k - k);
    for (p = 0; p < rows; ++p)
      hx_widen(q, walk->x + (size_t)(row + p) * (size_t)m->m_step_x + (size_t)k * (size_t)m->k_step_x, m->k_step_x, n,
               x + p * HX_CHUNK, 0);
    hx_add_products(q, columns, x, rows, n,
                    walk->y + (size_t)first * (size_t)m->n_step_y + (size_t)k * (size_t)m->k_step_y, m->n_step_y,
                    m->k_step_y, sums);
  }
  for (p = 0; p < rows; ++p) {
    if (!HX_ONLY_CLAMPS) hx_matmul_extras(m, walk, &q->requant.epilogue, row + p, first, extra);
    q->store(q, columns, sums + p * HX_BLOCK, extra,
             walk->out + (size_t)(row + p) * (size_t)m->m_step_out + (size_t)first * (size_t)m->item_out);
  }
}

static HX_NOINLINE void run_matmul(const hx_call* call, const hx_quantized* q) {
  hx_matmul m;
  hx_rows walk;
  hx_columns columns;
  int32_t row, n;
  if (!hx_begin_matmul(call, 0, hx_attr_i(call, 0) != 0, &m, &walk)) return;
  for (n = 0; n < m.n; n += columns.num) {
    columns.first = n;
    columns.num = hx_min(HX_BLOCK, m.n - n);
    q->read(q, &columns);
    do {
      for (row = 0; row < m.m; row += 2) run_rows(&m, &walk, q, &columns, row, hx_min(2, m.m - row));
    } while (hx_next_matrix(&m, &walk));
  }
}

static void run(const hx_call* call, int axis, hx_range range) {
  hx_quantized q;
  (void)axis;
  (void)range;
  hx_read_quantized(call, 1, &q);
  run_matmul(call, &q);
}

static void run_q31(const hx_call* call, int axis, hx_range range) {
  hx_quantized q;
  (void)axis;
  (void)range;
  hx_read_q31(call, 1, &q);
  run_matmul(call, &q);
}

HX_CHECK_FUNCTION hx_status check_either(const hx_call* call,
                                         hx_status (*check_rest)(const hx_call*, uint32_t, int32_t)) {
  hx_view out;
  const hx_status status = hx_check_matmul(call, 0, hx_attr_i(call, 0) != 0);
  if (status != HX_OK) return status;
  hx_output(call, 0, &out);
  return check_rest(call, 1, out.shape[out.rank - 1]);
}

HX_CHECK_FUNCTION hx_status check(const hx_call* call) { return check_either(call, hx_check_quantized); }
HX_CHECK_FUNCTION hx_status check_q31(const hx_call* call) { return check_either(call, hx_check_q31); }

const hx_kernel hx_kernel_quantized_matmul = {
    "quantized_matmul", 1 + HX_QUANTIZED_WORDS, 0, HX_NEEDS_ALL, HX_CHECK(check), 0, run};
const hx_kernel hx_kernel_q31_matmul = {"q31_matmul", 1 + HX_Q31_WORDS, 0, HX_NEEDS_ALL, HX_CHECK(check_q31), 0,
                                        run_q31};
