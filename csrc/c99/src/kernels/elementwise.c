/* Ops on fp32 elements: two operands, broadcast, with an epilogue of functions; or one, any activation of the build. */
#include "../internal.h"

HX_CHECK_FUNCTION hx_status check_operands(const hx_call* call, uint32_t num) {
  hx_view v, out;
  uint32_t i;
  if (call->num_inputs != num) return hx_refuse(call, "inputs: got another number");
  hx_output(call, 0, &out);
  for (i = 0; i < num; ++i) {
    if (!hx_input(call, i, &v)) return hx_refuse(call, "got an absent operand");
    if (v.dtype != HX_FP32)
      return hx_fail(call->net, HX_UNSUPPORTED, "steps", call->step, call->kernel->name, "dtype: need fp32");
    if (!hx_broadcasts(&v, &out)) return hx_refuse(call, "shapes do not broadcast");
  }
  return out.dtype == HX_FP32 ? HX_OK : hx_refuse(call, "output: need fp32");
}

HX_CHECK_FUNCTION hx_status check_binary(const hx_call* call) {
  const hx_status status = check_operands(call, 2);
  return status == HX_OK && call->kernel->attrs_words ? hx_check_epilogue(call, 0, 0) : status;
}

static void run_binary(const hx_call* call, int axis, hx_range range, float (*apply)(float, float)) {
  hx_epilogue epilogue;
  hx_view v[3];
  hx_walk walk;
  int32_t i;
  hx_input(call, 0, &v[0]);
  hx_input(call, 1, &v[1]);
  hx_output(call, 0, &v[2]);
  epilogue.count = 0;
  if (call->kernel->attrs_words) hx_read_epilogue(call, 0, &epilogue);
  if (!hx_walk_begin(&walk, v, 3, axis, range)) return;
  do {
    const uint8_t *a = walk.at[0], *b = walk.at[1];
    uint8_t* to = walk.at[2];
    for (i = 0; i < walk.count; ++i, a += walk.step[0], b += walk.step[1], to += walk.step[2])
      hx_put_f32(to, hx_apply_epilogue(&epilogue, apply(hx_f32(a), hx_f32(b)), 0));
  } while (hx_walk_next(&walk));
}

#define BINARY(name, words, expression)                                   \
  static float apply_##name(float a, float b) { return expression; }      \
  static void run_##name(const hx_call* call, int axis, hx_range range) { \
    run_binary(call, axis, range, apply_##name);                          \
  }                                                                       \
  const hx_kernel hx_kernel_##name = {#name, words, HX_CUT_ALL, HX_NEEDS_SAME, HX_CHECK(check_binary), 0, run_##name};

BINARY(add, HX_EPILOGUE_WORDS, a + b)
BINARY(sub, HX_EPILOGUE_WORDS, a - b)
BINARY(mul, HX_EPILOGUE_WORDS, a* b)
BINARY(real_div, HX_EPILOGUE_WORDS, a / b)
BINARY(maximum, 0, a != a || b != b ? a + b : a < b ? b : a)
BINARY(minimum, 0, a != a || b != b ? a + b : b < a ? b : a)
BINARY(prelu, 0, a < 0 ? a * b : a)
BINARY(pow, 0, hx_power(a, b))

HX_CHECK_FUNCTION hx_status check_unary(const hx_call* call) { return check_operands(call, 1); }

static void run_unary(const hx_call* call, int axis, hx_range range) {
  const hx_activation* f = call->activation;
  const float alpha = f->num_numbers > 0 ? hx_attr_f(call, 0) : 0.0f,
              beta = f->num_numbers > 1 ? hx_attr_f(call, 1) : 0.0f;
  hx_view v[2];
  hx_walk walk;
  int32_t i;
  hx_input(call, 0, &v[0]);
  hx_output(call, 0, &v[1]);
  if (!hx_walk_begin(&walk, v, 2, axis, range)) return;
  do {
    const uint8_t* x = walk.at[0];
    uint8_t* to = walk.at[1];
    for (i = 0; i < walk.count; ++i, x += walk.step[0], to += walk.step[1])
      hx_put_f32(to, f->apply(hx_f32(x), alpha, beta));
  } while (hx_walk_next(&walk));
}

const hx_kernel hx_kernel_unary = {"unary", 0, HX_CUT_ALL, HX_NEEDS_SAME, HX_CHECK(check_unary), 0, run_unary};
