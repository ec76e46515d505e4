/* Ops on fp32 elements: binary ops, broadcast, with an epilogue of functions, and the unary activations of the
 * build. integers.c has integer ops. */
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

static int has_integers(const hx_call* call) {
  hx_view out;
  hx_output(call, 0, &out);
  return out.dtype != HX_FP32;
}

HX_CHECK_FUNCTION hx_status check_binary(const hx_call* call) {
  hx_status status;
  if (has_integers(call)) return hx_check_integers(call, 2);
  status = check_operands(call, 2);
  return status == HX_OK && call->kernel->attrs_words ? hx_check_epilogue(call, 0, 0) : status;
}

static void run_binary(const hx_call* call, int axis, hx_range range, float (*apply)(float, float), hx_integer_op op) {
  hx_epilogue epilogue;
  hx_view v[3];
  hx_walk walk;
  int32_t i;
  if (has_integers(call)) {
    hx_run_integers(call, axis, range, op);
    return;
  }
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

/* Returns the exact remainder of truncated division, with the sign of a. Divides the mantissas bit by bit. */
static float remainder_of(float a, float b) {
  const uint32_t sign = hx_u32_of(a) & 0x80000000u, x = hx_u32_of(a) & 0x7fffffffu, y = hx_u32_of(b) & 0x7fffffffu;
  int32_t from = (int32_t)(x >> 23), to = (int32_t)(y >> 23);
  uint32_t left = x & 0x7fffffu, by = y & 0x7fffffu;
  float result;
  if (y == 0 || x >= 0x7f800000u || y > 0x7f800000u) {
    left = 0x7fc00000u;
  } else if (x < y) {
    return a;
  } else {
    if (from) left |= 0x800000u;
    if (to) by |= 0x800000u;
    from = from ? from : 1;
    to = to ? to : 1;
    left %= by;
    for (; from > to; --from) {
      left <<= 1;
      if (left >= by) left -= by;
    }
    for (; left && left < 0x800000u && to > 1; --to) left <<= 1;
    if (left >= 0x800000u) left = (left & 0x7fffffu) | (uint32_t)to << 23;
    left |= sign;
  }
  HX_COPY(&result, &left, 4);
  return result;
}

static float zero_like(float x) { /* 0 with the sign of x */
  const uint32_t bits = hx_u32_of(x) & 0x80000000u;
  float zero;
  HX_COPY(&zero, &bits, 4);
  return zero;
}

/* Returns the remainder with the sign of b. */
static float modulo(float a, float b) {
  const float rest = remainder_of(a, b);
  if (rest == 0) return zero_like(b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

static float floor_divide(float a, float b) {
  float rest, quotient, floored;
  if (b == 0) return a / b;
  rest = remainder_of(a, b);
  quotient = (a - rest) / b - (rest != 0 && (rest < 0) != (b < 0) ? 1.0f : 0.0f);
  if (quotient == 0) return zero_like(a / b);
  floored = hx_round(quotient);
  if (floored > quotient) floored -= 1;
  return quotient - floored > 0.5f ? floored + 1 : floored;
}

#define BINARY(name, words, op, expression)                               \
  static float apply_##name(float a, float b) { return expression; }      \
  static void run_##name(const hx_call* call, int axis, hx_range range) { \
    run_binary(call, axis, range, apply_##name, op);                      \
  }                                                                       \
  const hx_kernel hx_kernel_##name = {#name, words, HX_CUT_ALL, HX_NEEDS_SAME, HX_CHECK(check_binary), 0, run_##name};

BINARY(add, HX_EPILOGUE_WORDS, HX_ADD, a + b)
BINARY(sub, HX_EPILOGUE_WORDS, HX_SUB, a - b)
BINARY(mul, HX_EPILOGUE_WORDS, HX_MUL, a* b)
BINARY(real_div, HX_EPILOGUE_WORDS, HX_REAL_DIV, a / b)
BINARY(floor_div, 0, HX_FLOOR_DIV, floor_divide(a, b))
BINARY(mod, 0, HX_MOD, modulo(a, b))
BINARY(fmod, 0, HX_FMOD, remainder_of(a, b))
BINARY(maximum, 0, HX_MAXIMUM, a != a || b != b ? a + b : a < b ? b : a)
BINARY(minimum, 0, HX_MINIMUM, a != a || b != b ? a + b : b < a ? b : a)
BINARY(prelu, 0, HX_PRELU, a < 0 ? a * b : a)
BINARY(pow, 0, HX_POW, hx_power(a, b))

/* Returns the integer op of an activation; HX_NO_OP if integers have none. */
static hx_integer_op integer_op(const hx_call* call) {
  static const char kNames[] = "abs\0neg\0sign\0relu\0square\0clip\0"; /* names in the order of hx_integer_op */
  return (hx_integer_op)(HX_ABS + hx_index_of(call->activation->name, kNames));
}

HX_CHECK_FUNCTION hx_status check_unary(const hx_call* call) {
  if (!has_integers(call) || integer_op(call) == HX_NO_OP) return check_operands(call, 1);
  return hx_check_integers(call, 1);
}

static void run_unary(const hx_call* call, int axis, hx_range range) {
  const hx_activation* f = call->activation;
  const float alpha = f->num_numbers > 0 ? hx_attr_f(call, 0) : 0.0f,
              beta = f->num_numbers > 1 ? hx_attr_f(call, 1) : 0.0f;
  hx_view v[2];
  hx_walk walk;
  int32_t i;
  if (has_integers(call)) {
    hx_run_integers(call, axis, range, integer_op(call));
    return;
  }
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
