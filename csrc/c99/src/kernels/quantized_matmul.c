/* quantized_matmul, q31_matmul: [.., M, K] x [.., K, N] of 8-bit integers -> [.., M, N], with NumPy broadcasting;
 * scaled by TFLite's arithmetic in q31_matmul. */
#include "matmul.h"
#include "quantized.h"

/* Points to the operands that slots of the epilogue add to a matrix. */
static void read_extras(const hx_matmul* m, const hx_rows* walk, const hx_epilogue* epilogue, hx_extras* extras) {
  const uint8_t* at[4];
  int i;
  hx_read_extras(m->call, epilogue, extras);
  hx_matmul_extras(m, walk, epilogue, 0, 0, at);
  for (i = 0; i < epilogue->count; ++i)
    if (epilogue->slots[i].kind == HX_SLOT_ADD) {
      hx_view view;
      hx_input(m->call, epilogue->slots[i].operand, &view);
      extras->images[i].data = (uint8_t*)(uintptr_t)at[i];
      extras->images[i].image = extras->images[i].row = extras->images[i].ring = 0;
      extras->images[i].pixel = view.strides[view.rank - 2];
    }
}

/* Describes the product as a convolution: M pixels of K channels, N windows of 1 x 1. */
static void run_matmul(const hx_call* call, const hx_quantized* q) {
  const hx_range none = {0, 0};
  hx_matmul m;
  hx_rows walk;
  hx_conv c;
  hx_extras extras;
  if (!hx_begin_matmul(call, 0, hx_attr_i(call, 0) != 0, &m, &walk)) return;
  memset(&c, 0, sizeof c);
  c.h = c.wide = hx_one;
  c.wide.in = c.wide.out = m.m;
  c.wide.in_step = m.m_step_x;
  c.wide.out_step = m.m_step_out;
  c.batch = c.groups = 1;
  c.group_in = m.k;
  c.group_out = m.n;
  c.w_out = m.n_step_y;
  c.w_in = m.k_step_y;
  c.out.item = m.item_out;
  do {
    c.x.data = (uint8_t*)(uintptr_t)walk.x;
    c.w = walk.y;
    c.out.data = walk.out;
    if (!HX_ONLY_CLAMPS) read_extras(&m, &walk, &q->requant.epilogue, &extras);
    hx_run_quantized(&c, q, &extras, -1, none);
  } while (hx_next_matrix(&m, &walk));
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
