/* quantize: fp32 to integers of 8 or 16 bits, saturate(round(x / scale) + zero). dequantize: (x - zero) * scale. scale
 * and zero are one value, or one for each index of an axis; zero may be missing. */
#include "../internal.h"

static int is_wide(hx_dtype dtype) { return hx_is(dtype, HX_INT16) || hx_is(dtype, HX_UINT16); }

HX_CHECK_FUNCTION int is_integer(hx_dtype dtype) { return hx_is_byte(dtype) || is_wide(dtype); }

HX_CHECK_FUNCTION int spreads(const hx_view* view, const hx_view* out, int32_t axis) {
  if (view->rank == 0) return 1;
  if (axis < 0) axis += out->rank;
  return view->rank == 1 && axis >= 0 && axis < out->rank && view->shape[0] == out->shape[axis];
}

HX_CHECK_FUNCTION hx_status check(const hx_call* call, int quantizes) {
  const int32_t axis = hx_attr_n(call, 0);
  hx_view v[3], zero;
  const hx_view *x = &v[0], *scale = &v[1], *out = &v[2], *integers = quantizes ? out : x;
  if (call->num_inputs > 3 || !hx_views(call, 2, v)) return hx_refuse(call, "need x, scale and perhaps zero");
  if (!hx_same_shape(x, out)) return hx_refuse(call, "output: need the shape of x");
  if (!(is_integer(integers->dtype) || (!quantizes && integers->dtype == HX_INT32)) ||
      (quantizes ? x : out)->dtype != HX_FP32 || scale->dtype != HX_FP32)
    return hx_refuse(call, "dtypes: need fp32, and integers of 8 or 16 bits");
  if (!spreads(scale, out, axis)) return hx_refuse(call, "scale: need one, or one for each index of the axis");
  if (hx_input(call, 2, &zero) && (zero.dtype != integers->dtype || !spreads(&zero, out, axis)))
    return hx_refuse(call, "zero: need one of the integers' dtype, or one for each index of the axis");
  return HX_OK;
}

HX_CHECK_FUNCTION hx_status check_quantize(const hx_call* call) { return check(call, 1); }
HX_CHECK_FUNCTION hx_status check_dequantize(const hx_call* call) { return check(call, 0); }

/* Gives scale or zero the rank of `out`: one value for each index of an axis, or one for the tensor. */
static void spread(hx_view* view, const hx_view* out, int32_t axis) {
  const int32_t stride = view->strides[0], rank = view->rank;
  memset(view->strides, 0, sizeof view->strides);
  view->rank = out->rank;
  memcpy(view->shape, out->shape, sizeof view->shape);
  if (rank == 1) view->strides[axis < 0 ? axis + out->rank : axis] = stride;
  view->ring = 0;
}

static int32_t read_integer(const uint8_t* at, hx_dtype dtype) {
  int32_t value;
  if (hx_is(dtype, HX_INT32)) return hx_signed(hx_u32(at));
  if (!is_wide(dtype)) return hx_is_signed(dtype) ? hx_i8(at) : *at;
  value = at[0] | at[1] << 8;
  return hx_is(dtype, HX_INT16) && value > 32767 ? value - 65536 : value;
}

/* Sets the views of x, scale, zero (or scale again), and output. */
static int begin(const hx_call* call, hx_view* v, hx_walk* walk, int axis, hx_range range, int* has_zero) {
  hx_views(call, 2, v);
  v[3] = v[2];
  *has_zero = hx_input(call, 2, &v[2]);
  if (!*has_zero) v[2] = v[1];
  spread(&v[1], &v[3], hx_attr_n(call, 0));
  spread(&v[2], &v[3], hx_attr_n(call, 0));
  return hx_walk_begin(walk, v, 4, axis, range);
}

static void run_quantize(const hx_call* call, int axis, hx_range range) {
  hx_view v[4];
  hx_walk walk;
  int has_zero;
  int32_t i;
  float low, high;
  if (!begin(call, v, &walk, axis, range, &has_zero)) return;
  low = hx_is(v[3].dtype, HX_INT16) ? -32768.0f : hx_is(v[3].dtype, HX_INT8) ? -128.0f : 0.0f;
  high = low + (is_wide(v[3].dtype) ? 65535.0f : 255.0f);
  do {
    const uint8_t *x = walk.at[0], *scale = walk.at[1], *zero = walk.at[2];
    uint8_t* to = walk.at[3];
    for (i = 0; i < walk.count; ++i) {
      float f = hx_round(hx_f32(x) / hx_f32(scale)) + (has_zero ? (float)read_integer(zero, v[3].dtype) : 0.0f);
      const int32_t value = f != f ? 0 : (int32_t)hx_clamp(f, low, high);
      to[0] = (uint8_t)value;
      if (is_wide(v[3].dtype)) to[1] = (uint8_t)((uint32_t)value >> 8);
      x += walk.step[0];
      scale += walk.step[1];
      zero += walk.step[2];
      to += walk.step[3];
    }
  } while (hx_walk_next(&walk));
}

static void run_dequantize(const hx_call* call, int axis, hx_range range) {
  hx_view v[4];
  hx_walk walk;
  int has_zero;
  int32_t i;
  if (!begin(call, v, &walk, axis, range, &has_zero)) return;
  do {
    const uint8_t *x = walk.at[0], *scale = walk.at[1], *zero = walk.at[2];
    uint8_t* to = walk.at[3];
    for (i = 0; i < walk.count; ++i) {
      const float at = (float)read_integer(x, v[0].dtype),
                  origin = has_zero ? (float)read_integer(zero, v[0].dtype) : 0.0f;
      hx_put_f32(to, (at - origin) * hx_f32(scale));
      x += walk.step[0];
      scale += walk.step[1];
      zero += walk.step[2];
      to += walk.step[3];
    }
  } while (hx_walk_next(&walk));
}

const hx_kernel hx_kernel_quantize = {"quantize", 1,           HX_CUT_ALL, HX_NEEDS_SAME, HX_CHECK(check_quantize),
                                      0,          run_quantize};
const hx_kernel hx_kernel_dequantize = {"dequantize",  1, HX_CUT_ALL, HX_NEEDS_SAME, HX_CHECK(check_dequantize), 0,
                                        run_dequantize};
