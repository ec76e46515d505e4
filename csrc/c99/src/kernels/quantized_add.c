/* quantized_add: adds two 8-bit tensors, broadcast, as real numbers. Applies an epilogue of functions and quantises
 * the result. */
#include "../internal.h"

enum { X_SCALE, X_ZERO, Y_SCALE, Y_ZERO, OUTPUT_SCALE, OUTPUT_ZERO, EPILOGUE };

const char hx_bad_zero[] = "zero points: need what the dtypes can hold";

hx_status hx_check_bytes(const hx_call* call, uint32_t x_zero, uint32_t y_zero, uint32_t output_zero) {
  hx_view v[3];
  int i;
  if (!hx_operands(call, 2, v)) return hx_refuse(call, "need two inputs");
  for (i = 0; i < 3; ++i)
    if (!hx_is_byte(v[i].dtype)) return hx_refuse(call, "need int8 or uint8");
  if (!hx_broadcasts(&v[0], &v[2]) || !hx_broadcasts(&v[1], &v[2])) return hx_refuse(call, "shapes do not broadcast");
  if (!hx_holds(v[0].dtype, hx_attr_n(call, x_zero)) || !hx_holds(v[1].dtype, hx_attr_n(call, y_zero)) ||
      !hx_holds(v[2].dtype, hx_attr_n(call, output_zero)))
    return hx_refuse(call, hx_bad_zero);
  return HX_OK;
}

HX_CHECK_FUNCTION hx_status check(const hx_call* call) {
  const hx_status status = hx_check_bytes(call, X_ZERO, Y_ZERO, OUTPUT_ZERO);
  if (status != HX_OK) return status;
  if (!(hx_attr_f(call, OUTPUT_SCALE) > 0) || hx_attr_f(call, OUTPUT_SCALE) > FLT_MAX)
    return hx_refuse(call, "output_scale: need a positive number");
  return hx_check_epilogue(call, EPILOGUE, 0);
}

static float real(const uint8_t* at, int is_signed, int32_t zero, float scale) {
  return (float)((is_signed ? hx_i8(at) : *at) - zero) * scale;
}

static void run(const hx_call* call, int axis, hx_range range) {
  const float x_scale = hx_attr_f(call, X_SCALE), y_scale = hx_attr_f(call, Y_SCALE),
              scale = hx_attr_f(call, OUTPUT_SCALE), zero = (float)(int32_t)hx_attr_i(call, OUTPUT_ZERO);
  const int32_t x_zero = (int32_t)hx_attr_i(call, X_ZERO), y_zero = (int32_t)hx_attr_i(call, Y_ZERO);
  hx_epilogue epilogue;
  hx_view v[3];
  hx_walk walk;
  float low;
  int x_signed, y_signed;
  int32_t i;
  hx_operands(call, 2, v);
  hx_read_epilogue(call, EPILOGUE, &epilogue);
  x_signed = hx_is_signed(v[0].dtype);
  y_signed = hx_is_signed(v[1].dtype);
  low = hx_is_signed(v[2].dtype) ? -128.0f : 0.0f;
  if (!hx_walk_begin(&walk, v, 3, axis, range)) return;
  do {
    const uint8_t *x = walk.at[0], *y = walk.at[1];
    uint8_t* to = walk.at[2];
    for (i = 0; i < walk.count; ++i, x += walk.step[0], y += walk.step[1], to += walk.step[2]) {
      float f = real(x, x_signed, x_zero, x_scale) + real(y, y_signed, y_zero, y_scale);
      if (epilogue.count) f = hx_apply_epilogue(&epilogue, f, 0);
      f = hx_round(f / scale) + zero;
      *to = (uint8_t)(int32_t)(f != f ? low : hx_clamp(f, low, low + 255));
    }
  } while (hx_walk_next(&walk));
}

const hx_kernel hx_kernel_quantized_add = {
    "quantized_add", 6 + HX_EPILOGUE_WORDS, HX_CUT_ALL, HX_NEEDS_SAME, HX_CHECK(check), 0, run};
