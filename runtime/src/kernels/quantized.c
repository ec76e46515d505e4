#include "quantized.h"

#if defined(__ARM_FEATURE_DSP)
#include <arm_acle.h>
#endif

enum { SCALE = 2, BIAS = 3, X_ZERO = 4, Y_ZERO = 5 };

static int is_byte(hx_dtype dtype) { return dtype == HX_INT8 || dtype == HX_UINT8; }

static int32_t read_byte(hx_dtype dtype, const uint8_t* at) { return dtype == HX_INT8 ? hx_i8(at) : *at; }

static void read_vector(const hx_call* call, uint32_t i, hx_vector* vector) {
  hx_view view;
  memset(vector, 0, sizeof *vector);
  if (!hx_input(call, i, &view)) return;
  vector->data = view.data;
  vector->step = view.rank > 0 && view.shape[0] > 1 ? view.strides[0] : 0;
  vector->dtype = view.dtype;
}

static const uint8_t* of_column(const hx_vector* vector, int32_t column) {
  return vector->data + (size_t)column * (size_t)vector->step;
}

static int fits_columns(const hx_view* view, int32_t columns) {
  return view->rank == 0 || (view->rank == 1 && view->shape[0] == columns);
}

hx_status hx_check_quantized(const hx_call* call, uint32_t word, int32_t columns) {
  hx_view x, y, out, view;
  const float scale = hx_attr_f(call, word);
  const int64_t zero = hx_attr_i(call, word + 1);
  hx_status status = hx_check_epilogue(call, word + 2, 1);
  if (status != HX_OK) return status;
  if (!hx_input(call, 0, &x) || !hx_input(call, 1, &y) || !is_byte(x.dtype) || !is_byte(y.dtype))
    return hx_refuse(call, "x and y: need int8 or uint8");
  hx_output(call, 0, &out);
  if (!is_byte(out.dtype) && out.dtype != HX_INT32 && out.dtype != HX_FP32)
    return hx_refuse(call, "output: need int8, uint8, int32 or fp32");
  if (is_byte(out.dtype)) {
    const int64_t low = out.dtype == HX_INT8 ? -128 : 0;
    if (!(scale > 0) || scale > FLT_MAX) return hx_refuse(call, "output_scale: need a positive number");
    if (zero < low || zero > low + 255) return hx_refuse(call, "output_zero: need what the output can hold");
  }
  if (out.dtype == HX_INT32 && hx_attr_i(call, word + 2)) return hx_refuse(call, "epilogue: need none for int32");
  if (hx_input(call, SCALE, &view) != (out.dtype != HX_INT32))
    return hx_refuse(call, "scale: need one unless the output is int32");
  if (hx_input(call, SCALE, &view) && (view.dtype != HX_FP32 || !fits_columns(&view, columns)))
    return hx_refuse(call, "scale: need one fp32, or one for each channel");
  if (hx_input(call, BIAS, &view) && ((view.dtype != HX_INT32 && (view.dtype != HX_FP32 || out.dtype == HX_INT32)) ||
                                      view.rank != 1 || view.shape[0] != columns))
    return hx_refuse(call, "bias: need one int32 or fp32 for each channel");
  if (hx_input(call, X_ZERO, &view) && (view.dtype != x.dtype || view.rank != 0))
    return hx_refuse(call, "x_zero: need one of the dtype of x");
  if (hx_input(call, Y_ZERO, &view) && (view.dtype != y.dtype || !fits_columns(&view, columns)))
    return hx_refuse(call, "y_zero: need one of the dtype of y, or one for each channel");
  return HX_OK;
}

/* The clamps applied to both infinities give the bounds of the result. */
static void fold_clamps(hx_requant* r) {
  const float infinity = HX_INFINITY;
  float bounds[2], steps, rest;
  int i, k;
  bounds[0] = -infinity;
  bounds[1] = infinity;
  r->in_bounds = 1;
  for (i = 0; i < r->epilogue.count; ++i) {
    const hx_slot* slot = &r->epilogue.slots[i];
    if (slot->kind != HX_SLOT_RELU && slot->kind != HX_SLOT_CLAMP) r->in_bounds = 0;
    for (k = 0; k < 2; ++k) {
      if (bounds[k] < slot->alpha) bounds[k] = slot->alpha;
      if (slot->kind != HX_SLOT_RELU && bounds[k] > slot->beta) bounds[k] = slot->beta;
    }
  }
  if (!r->in_bounds) return;
  r->in_steps = is_byte(r->dtype);
  for (k = 0; k < 2; ++k) {
    if (r->in_steps) {
      hx_divide(bounds[k], r->output_scale, &steps, &rest);
      bounds[k] = hx_round(steps) + r->zero;
    }
    bounds[k] = hx_clamp(bounds[k], r->low, r->high);
  }
  r->low = bounds[0];
  r->high = bounds[1];
}

void hx_read_quantized(const hx_call* call, uint32_t word, hx_quantized* q) {
  hx_requant* r = &q->requant;
  hx_view x, y, out, zero;
  hx_input(call, 0, &x);
  hx_input(call, 1, &y);
  hx_output(call, 0, &out);
  read_vector(call, SCALE, &q->scale);
  read_vector(call, BIAS, &q->bias);
  read_vector(call, Y_ZERO, &q->y_zero);
  q->x_flip = x.dtype == HX_UINT8 ? 0x80 : 0;
  q->y_flip = y.dtype == HX_UINT8 ? 0x80 : 0;
  q->x_zero = hx_input(call, X_ZERO, &zero) ? read_byte(zero.dtype, zero.data) : 0;
  r->dtype = out.dtype;
  r->in_steps = 0;
  r->output_scale = hx_u64(call->attrs + 8 * word);
  r->inverse_scale = 1;
  r->zero = 0;
  r->low = -HX_INFINITY;
  r->high = HX_INFINITY;
  hx_read_epilogue(call, word + 2, &r->epilogue);
  if (is_byte(out.dtype)) {
    r->low = out.dtype == HX_INT8 ? -128.0f : 0.0f;
    r->high = r->low + 255;
    r->inverse_scale = 1.0f / hx_attr_f(call, word);
    r->zero = (float)(int32_t)hx_attr_i(call, word + 1);
  }
  fold_clamps(r);
}

void hx_read_column(const hx_quantized* q, int32_t column, hx_column* to) {
  const hx_requant* r = &q->requant;
  float unused;
  to->start = 0;
  to->scale = to->rest = to->bias = 0;
  to->y_zero = q->y_zero.data ? read_byte(q->y_zero.dtype, of_column(&q->y_zero, column)) : 0;
  if (q->bias.data && q->bias.dtype == HX_INT32) to->start = hx_u32(of_column(&q->bias, column));
  if (q->scale.data) {
    to->scale = hx_f32(of_column(&q->scale, column));
    if (r->in_steps) hx_divide(to->scale, r->output_scale, &to->scale, &to->rest);
  }
  if (q->bias.data && q->bias.dtype == HX_FP32) {
    to->bias = hx_f32(of_column(&q->bias, column));
    if (r->in_steps) hx_divide(to->bias, r->output_scale, &to->bias, &unused);
  }
}

static uint32_t any_dot(const hx_quantized* q, int32_t y_zero, const uint8_t* x, int32_t x_step, const uint8_t* y,
                        int32_t y_step, int32_t n) {
  const int32_t x_zero = q->x_flip ? q->x_zero - 128 : q->x_zero;
  int32_t i;
  uint32_t sum = 0;
  y_zero = q->y_flip ? y_zero - 128 : y_zero;
  for (i = 0; i < n; ++i, x += x_step, y += y_step) {
    const uint8_t a = *x ^ q->x_flip, b = *y ^ q->y_flip;
    sum += (uint32_t)((hx_i8(&a) - x_zero) * (hx_i8(&b) - y_zero));
  }
  return sum;
}

#if defined(__ARM_FEATURE_DSP) && HX_LITTLE_ENDIAN
/* Four bytes of each side at once: bytes 0 and 2, then 1 and 3, as pairs of 16 bits. */
static void signed_dots(const int8_t* x, int32_t zero, const int8_t* y, int32_t y_next, int32_t n, int32_t* sums) {
  const int8_t *y1 = y + y_next, *y2 = y1 + y_next, *y3 = y2 + y_next;
  const uint32_t zeros = ((uint32_t)zero & 0xffffu) * 0x10001u;
  int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0, i = 0;
#define PAIRS(from, sum)                                      \
  {                                                           \
    const uint32_t bytes = hx_u32(from + i);                  \
    sum = __smlad((int16x2_t)even, __sxtb16(bytes), sum);     \
    sum = __smlad((int16x2_t)odd, __sxtb16(bytes >> 8), sum); \
  }
  for (; i + 4 <= n; i += 4) {
    const uint32_t four = hx_u32(x + i);
    const int16x2_t even = __ssub16(__sxtb16(four), (int16x2_t)zeros),
                    odd = __ssub16(__sxtb16(four >> 8), (int16x2_t)zeros);
    PAIRS(y, s0)
    PAIRS(y1, s1)
    PAIRS(y2, s2)
    PAIRS(y3, s3)
  }
#undef PAIRS
  for (; i < n; ++i) {
    const int32_t a = x[i] - zero;
    s0 += a * y[i];
    s1 += a * y1[i];
    s2 += a * y2[i];
    s3 += a * y3[i];
  }
  sums[0] = s0;
  sums[1] = s1;
  sums[2] = s2;
  sums[3] = s3;
}
#else
static void signed_dots(const int8_t* x, int32_t zero, const int8_t* y, int32_t y_next, int32_t n, int32_t* sums) {
  const int8_t *y1 = y + y_next, *y2 = y1 + y_next, *y3 = y2 + y_next;
  int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0, i;
  for (i = 0; i < n; ++i) {
    const int16_t a = (int16_t)(x[i] - zero);
    s0 += a * (int16_t)y[i];
    s1 += a * (int16_t)y1[i];
    s2 += a * (int16_t)y2[i];
    s3 += a * (int16_t)y3[i];
  }
  sums[0] = s0;
  sums[1] = s1;
  sums[2] = s2;
  sums[3] = s3;
}
#endif

void hx_quantized_dots(const hx_quantized* q, const hx_column* columns, int num, const uint8_t* x, int32_t x_step,
                       const uint8_t* y, int32_t y_next, int32_t y_step, int32_t n, uint32_t* sums) {
  int i, plain = num == HX_BLOCK && x_step == 1 && y_step == 1 && !q->x_flip && !q->y_flip && n < 65536;
  for (i = 0; i < num; ++i) plain &= columns[i].y_zero == 0;
  if (plain) { /* a product is less than 2^15 */
    int32_t parts[HX_BLOCK];
    signed_dots((const int8_t*)x, q->x_zero, (const int8_t*)y, y_next, n, parts);
    for (i = 0; i < num; ++i) sums[i] += (uint32_t)parts[i];
    return;
  }
  for (i = 0; i < num; ++i)
    sums[i] += any_dot(q, columns[i].y_zero, x, x_step, y + (size_t)i * (size_t)y_next, y_step, n);
}

static void store_byte(float value, uint8_t* to) { *to = (uint8_t)(int32_t)value; }

void hx_store_sum(const hx_requant* r, const hx_column* column, uint32_t sum, const uint8_t* const* extra,
                  uint8_t* to) {
  float f;
  if (r->dtype == HX_INT32) {
    hx_put_u32(to, sum);
    return;
  }
  f = (float)hx_signed(sum);
  if (r->in_steps) {
    f = hx_fma(f, column->scale, hx_fma(f, column->rest, column->bias));
    f = f < -65536.0f ? -65536.0f : f <= 65536.0f ? f : 65536.0f; /* NaN too */
    store_byte(hx_clamp(hx_round(f) + r->zero, r->low, r->high), to);
    return;
  }
  f = f * column->scale + column->bias;
  if (!r->in_bounds) f = hx_apply_epilogue(&r->epilogue, f, extra);
  if (r->dtype == HX_FP32) {
    hx_put_f32(to, hx_clamp(f, r->low, r->high));
    return;
  }
  f = hx_round(f * r->inverse_scale) + r->zero;
  store_byte(f != f ? 0.0f : hx_clamp(f, r->low, r->high), to);
}
