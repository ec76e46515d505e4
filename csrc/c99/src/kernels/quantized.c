#include "quantized.h"

#if defined(__ARM_FEATURE_DSP)
#include <arm_acle.h>
#endif

enum { SCALE = 2, BIAS = 3, X_ZERO = 4, Y_ZERO = 5, SHIFT = 6 };

static int32_t read_byte(hx_dtype dtype, const uint8_t* at) { return hx_is_signed(dtype) ? hx_i8(at) : *at; }

/* ---- operands ---- */

/* True if an optional operand is absent, or has this dtype and one value for each column or (with one_for_all) for all
 * columns. */
HX_CHECK_FUNCTION int fits(const hx_call* call, uint32_t i, hx_dtype dtype, int one_for_all, int32_t columns) {
  hx_view view;
  if (!hx_input(call, i, &view)) return 1;
  return view.dtype == dtype &&
         ((one_for_all && view.rank == 0) || (columns >= 0 && view.rank == 1 && view.shape[0] == columns));
}

/* Checks the dtypes and zero points of x, y and the output, and sets their views in `v`. */
HX_CHECK_FUNCTION hx_status check_operands(const hx_call* call, int32_t columns, int32_t zero, hx_view* v) {
  if (!hx_views(call, 2, v) || !hx_is_byte(v[0].dtype) || !hx_is_byte(v[1].dtype))
    return hx_refuse(call, "x and y: need int8 or uint8");
  if (hx_is_byte(v[2].dtype) && !hx_holds(v[2].dtype, zero)) return hx_refuse(call, hx_bad_zero);
  if (!fits(call, X_ZERO, v[0].dtype, 1, -1) || !fits(call, Y_ZERO, v[1].dtype, 1, columns))
    return hx_refuse(call, "zero points: need those of x and y, one or one for each channel of y");
  return HX_OK;
}

hx_status hx_check_quantized(const hx_call* call, uint32_t word, int32_t columns) {
  hx_view v[3], view;
  const hx_view* out = &v[2];
  const float scale = hx_attr_f(call, word);
  hx_status status = hx_check_epilogue(call, word + 2, 1);
  if (status == HX_OK) status = check_operands(call, columns, hx_attr_n(call, word + 1), v);
  if (status != HX_OK) return status;
  if (!hx_is_byte(out->dtype) && (HX_ONLY_CLAMPS || (out->dtype != HX_INT32 && out->dtype != HX_FP32)))
    return hx_refuse(call, "output: need int8 or uint8, and where the build has them int32 or fp32");
  if (hx_is_byte(out->dtype) && (!(scale > 0) || scale > FLT_MAX))
    return hx_refuse(call, "output_scale: need a positive number");
  if (out->dtype == HX_INT32 && hx_attr_i(call, word + 2)) return hx_refuse(call, "epilogue: need none for int32");
  if (hx_input(call, SCALE, &view) != (out->dtype != HX_INT32) || !fits(call, SCALE, HX_FP32, 1, columns))
    return hx_refuse(call, "scale: need fp32 unless the output is int32, one or one for each channel");
  if (!fits(call, BIAS, HX_INT32, 0, columns) && (out->dtype == HX_INT32 || !fits(call, BIAS, HX_FP32, 0, columns)))
    return hx_refuse(call, "bias: need one int32 or fp32 for each channel");
  return HX_OK;
}

hx_status hx_check_q31(const hx_call* call, uint32_t word, int32_t columns) {
  hx_view v[3], view;
  const hx_view* out = &v[2];
  const hx_status status = check_operands(call, columns, hx_attr_n(call, word), v);
  if (status != HX_OK) return status;
  if (!hx_is_byte(out->dtype) || !hx_input(call, SCALE, &view) ||
      (!fits(call, SCALE, HX_INT32, 1, columns) && !fits(call, SCALE, HX_INT64, 1, columns)) ||
      !fits(call, SHIFT, HX_INT8, 1, columns) || !fits(call, BIAS, HX_INT32, 0, columns))
    return hx_refuse(call, "need an 8-bit output, a multiplier, an int32 bias, and an int8 shift");
  return hx_check_clamp(call, word);
}

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

/* Reads the operands and returns the dtype of the output. */
static hx_dtype read_operands(const hx_call* call, hx_quantized* q) {
  hx_view v[3], zero;
  hx_views(call, 2, v);
  read_vector(call, SCALE, &q->scale);
  read_vector(call, BIAS, &q->bias);
  read_vector(call, Y_ZERO, &q->y_zero);
  if (hx_has_dtype(HX_UINT8)) {
    q->x_flip = hx_is_signed(v[0].dtype) ? 0 : 0x80;
    q->y_flip = hx_is_signed(v[1].dtype) ? 0 : 0x80;
  }
  q->x_zero = hx_input(call, X_ZERO, &zero) ? read_byte(zero.dtype, zero.data) : 0;
  if (hx_flip(q->x_flip)) q->x_zero -= 128;
  q->item = v[2].item;
  return v[2].dtype;
}

/* Folds the epilogue's clamps into the bounds of the result, by applying them to both infinities. */
static void fold_clamps(hx_requant* r) {
  const float infinity = HX_INFINITY;
  float bounds[2], steps, rest;
  int i, k;
  bounds[0] = -infinity;
  bounds[1] = infinity;
  r->in_bounds = 1;
  for (i = 0; i < r->epilogue.count; ++i) {
    const hx_slot* slot = &r->epilogue.slots[i];
    if (!HX_ONLY_CLAMPS && slot->kind != HX_SLOT_CLAMP) r->in_bounds = 0;
    for (k = 0; k < 2; ++k) bounds[k] = hx_clamp(bounds[k], slot->alpha, slot->beta);
  }
  if (!r->in_bounds) return;
  r->in_steps = HX_ONLY_CLAMPS || hx_is_byte(r->dtype);
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

static void read_start(const hx_quantized* q, hx_columns* columns) {
  int32_t i;
  for (i = 0; i < columns->num; ++i)
    columns->start[i] = q->bias.data && q->bias.dtype == HX_INT32 ? hx_u32(of_column(&q->bias, columns->first + i)) : 0;
}

static void read_real(const hx_quantized* q, hx_columns* columns) {
  const hx_requant* r = &q->requant;
  float unused;
  int32_t i;
  read_start(q, columns);
  for (i = 0; i < columns->num; ++i) {
    const int32_t column = columns->first + i;
    float scale = 0, rest = 0, bias = 0;
    if (q->scale.data) {
      scale = hx_f32(of_column(&q->scale, column));
      if (r->in_steps && i && q->scale.step == 0) {
        scale = columns->to.real.scale[0];
        rest = columns->to.real.rest[0];
      } else if (r->in_steps) {
        hx_divide(scale, r->output_scale, &scale, &rest);
      }
    }
    if (q->bias.data && q->bias.dtype == HX_FP32) {
      bias = hx_f32(of_column(&q->bias, column));
      if (r->in_steps) hx_divide(bias, r->output_scale, &bias, &unused);
    }
    columns->to.real.scale[i] = scale;
    columns->to.real.rest[i] = rest;
    columns->to.real.bias[i] = bias;
  }
}

static void store_byte(float value, uint8_t* to) { *to = (uint8_t)(int32_t)value; }

/* Stores results for an epilogue with other functions than clamps, or for an output that is not 8-bit. */
static HX_NOINLINE void store_any(const hx_quantized* q, const hx_columns* columns, const uint32_t* sums,
                                  const uint8_t* const* extra, uint8_t* to) {
  const hx_requant* r = &q->requant;
  const uint8_t* at[4];
  int32_t i;
  int k;
  for (i = 0; i < columns->num; ++i, to += q->item) {
    float f = (float)hx_signed(sums[i]);
    if (r->dtype == HX_INT32) {
      hx_put_u32(to, sums[i]);
      continue;
    }
    f = f * columns->to.real.scale[i] + columns->to.real.bias[i];
    for (k = 0; k < r->epilogue.count; ++k) at[k] = extra[k] ? extra[k] + i * q->item : 0;
    if (!r->in_bounds) f = hx_apply_epilogue(&r->epilogue, f, at);
    if (r->dtype == HX_FP32) {
      hx_put_f32(to, hx_clamp(f, r->low, r->high));
      continue;
    }
    f = hx_round(f * r->inverse_scale) + r->zero;
    store_byte(f != f ? 0.0f : hx_clamp(f, r->low, r->high), to);
  }
}

/* Returns a sum in steps of the output, rounded, before the zero point is added. */
static inline float steps_of(const hx_columns* columns, uint32_t bits, int32_t i) {
  const float sum = (float)hx_signed(bits), *scale = columns->to.real.scale, *rest = columns->to.real.rest;
  const float f = hx_fma(sum, scale[i], hx_fma(sum, rest[i], columns->to.real.bias[i]));
  return hx_round(f < -65536.0f ? -65536.0f : f <= 65536.0f ? f : 65536.0f); /* NaN gives 65536 */
}

#if HX_FUSES
static inline void store_steps(const hx_columns* columns, const uint32_t* sums, float zero, float low, float high,
                               uint8_t* to) {
  const int32_t num = columns->num;
  int32_t i;
  for (i = 0; i < num; ++i) store_byte(hx_clamp(steps_of(columns, sums[i], i) + zero, low, high), to + i);
}
#else
/* Fused multiply-adds in software are slow, so products are rounded separately at first: the error of f is then below
 * 2^-22 of its terms. Only results within this error of a half are computed again. */
static void store_steps(const hx_columns* columns, const uint32_t* sums, float zero, float low, float high,
                        uint8_t* to) {
  const float *scale = columns->to.real.scale, *rest = columns->to.real.rest, *bias = columns->to.real.bias;
  const float magic = 12582912.0f, unit = 1.0f / (1 << 20); /* 1.5 2^23: adding it rounds numbers below 2^22 */
  float steps[HX_BLOCK];
  int32_t unsure[HX_BLOCK];
  int32_t any = 0, i;
  const int32_t num = columns->num;
  for (i = 0; i < num; ++i) {
    const float sum = (float)(int32_t)sums[i], product = sum * scale[i], other = sum * rest[i] + bias[i];
    const float f = product + other, whole = (f + magic) - magic, part = f - whole;
    const float terms = (product < 0 ? -product : product) + (other < 0 ? -other : other);
    steps[i] = whole;
    unsure[i] = !((part < 0 ? -part : part) + terms * unit < 0.5f); /* true also for NaN and infinity */
    any |= unsure[i];
  }
  for (i = 0; any && i < num; ++i)
    if (unsure[i]) steps[i] = steps_of(columns, sums[i], i);
  for (i = 0; i < num; ++i) unsure[i] = (int32_t)hx_clamp(steps[i] + zero, low, high);
  for (i = 0; i < num; ++i) to[i] = (uint8_t)unsure[i];
}
#endif

static void store_real(const hx_quantized* q, const hx_columns* columns, const uint32_t* sums,
                       const uint8_t* const* extra, uint8_t* to) {
  if (HX_ONLY_CLAMPS || q->requant.in_steps)
    store_steps(columns, sums, q->requant.zero, q->requant.low, q->requant.high, to);
  else
    store_any(q, columns, sums, extra, to);
}

void hx_read_quantized(const hx_call* call, uint32_t word, hx_quantized* q) {
  hx_requant* r = &q->requant;
  r->dtype = read_operands(call, q);
  q->read = read_real;
  q->store = store_real;
  r->in_steps = 0;
  r->output_scale = hx_u64(call->attrs + 8 * word);
  r->inverse_scale = 1;
  r->zero = 0;
  r->low = -HX_INFINITY;
  r->high = HX_INFINITY;
  hx_read_epilogue(call, word + 2, &r->epilogue);
  if (hx_is_byte(r->dtype)) {
    r->low = hx_is_signed(r->dtype) ? -128.0f : 0.0f;
    r->high = r->low + 255;
    r->inverse_scale = 1.0f / hx_attr_f(call, word);
    r->zero = (float)(int32_t)hx_attr_i(call, word + 1);
  }
  fold_clamps(r);
}

/* ---- TFLite's arithmetic ---- */

static void read_shifts(const hx_quantized* q, hx_columns* columns) {
  int32_t i;
  read_start(q, columns);
  for (i = 0; i < columns->num; ++i) {
    const int32_t column = columns->first + i, multiplier = hx_signed(hx_u32(of_column(&q->scale, column))),
                  shift = q->shift.data ? hx_i8(of_column(&q->shift, column)) : 0;
    columns->to.q31.multiplier[i] = hx_max(multiplier, 0);
    columns->to.q31.left[i] = hx_min(hx_max(shift, 0), HX_MOST_SHIFT);
    columns->to.q31.right[i] = hx_min(hx_max(-shift, 0), -HX_LEAST_SHIFT);
  }
}

static void store_q31(const hx_quantized* q, const hx_columns* columns, const uint32_t* sums,
                      const uint8_t* const* extra, uint8_t* to) {
  const int32_t *multiplier = columns->to.q31.multiplier, *left = columns->to.q31.left, *right = columns->to.q31.right;
  const int32_t zero = q->output_zero, low = q->low - zero, high = q->high - zero, num = columns->num;
  int32_t i;
  (void)extra;
  for (i = 0; i < num; ++i) {
    const int32_t x = hx_rescaled(hx_signed(sums[i]), multiplier[i], left[i], right[i]);
    to[i] = (uint8_t)(hx_min(hx_max(x, low), high) + zero);
  }
}

static int32_t shift_of(const hx_quantized* q, int32_t column) {
  const int32_t shift = q->shift.data ? hx_i8(of_column(&q->shift, column)) : 0;
  return hx_min(hx_max(shift, HX_LEAST_SHIFT), HX_MOST_SHIFT);
}

static void read_digits(const hx_quantized* q, hx_columns* columns) {
  int32_t i;
  read_start(q, columns);
  for (i = 0; i < columns->num; ++i) {
    const int32_t column = columns->first + i;
    const int64_t most = ((int64_t)1 << HX_DIGITS) - 1, given = hx_i64(of_column(&q->scale, column)),
                  digits = given < 0      ? 0
                           : given < most ? given
                                          : most;
    columns->to.digits.high[i] = (int32_t)(digits >> HX_LOW_DIGITS);
    columns->to.digits.low[i] = (int32_t)(digits & ((1 << HX_LOW_DIGITS) - 1));
    columns->to.digits.shift[i] = shift_of(q, column);
  }
}

static void store_once(const hx_quantized* q, const hx_columns* columns, const uint32_t* sums,
                       const uint8_t* const* extra, uint8_t* to) {
  const int32_t *high = columns->to.digits.high, *low = columns->to.digits.low, *shift = columns->to.digits.shift;
  const int32_t zero = q->output_zero, least = q->low - zero, most = q->high - zero, num = columns->num;
  int32_t i;
  (void)extra;
  for (i = 0; i < num; ++i) {
    const int32_t x = hx_scaled_once(hx_signed(sums[i]), high[i], low[i], shift[i]);
    to[i] = (uint8_t)(hx_min(hx_max(x, least), most) + zero);
  }
}

void hx_read_q31(const hx_call* call, uint32_t word, hx_quantized* q) {
  const hx_dtype dtype = read_operands(call, q);
  const int once = hx_is(q->scale.dtype, HX_INT64);
  q->read = once ? read_digits : read_shifts;
  q->store = once ? store_once : store_q31;
  read_vector(call, SHIFT, &q->shift);
  hx_read_clamp(call, word, dtype, &q->output_zero, &q->low, &q->high);
  if (!HX_ONLY_CLAMPS) q->requant.epilogue.count = 0;
}

/* ---- sums of products ---- */

/* The position of term i. The DSP instructions read bytes 0 and 2 of four, then bytes 1 and 3, so terms are in this
 * order for DSP instructions. */
#if defined(__ARM_FEATURE_DSP) && HX_LITTLE_ENDIAN
#define PLACE(i) (((i) & ~3) | ((i)&1) << 1 | ((i) >> 1 & 1))
#else
#define PLACE(i) (i)
#endif

HX_NOINLINE void hx_widen(const hx_quantized* q, const uint8_t* x, int32_t n, int16_t* to, int32_t at) {
  const uint8_t flip = hx_flip(q->x_flip);
  const int32_t zero = q->x_zero;
  int32_t i;
  for (i = 0; i < n; ++i) to[PLACE(at + i)] = (int16_t)((int8_t)(x[i] ^ flip) - zero);
}

void hx_widen_zeros(int32_t n, int16_t* to, int32_t at) {
  int32_t i;
  for (i = 0; i < n; ++i) to[PLACE(at + i)] = 0;
}

/* Adds products of four columns of signed bytes with one or two rows of terms. */
static inline void four_columns(const int16_t* x, int two, int32_t n, const int8_t* y, int32_t y_next, uint32_t* sums) {
  const int8_t *y1 = y + y_next, *y2 = y1 + y_next, *y3 = y2 + y_next;
  const int16_t* z = x + HX_CHUNK;
  int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0, t0 = 0, t1 = 0, t2 = 0, t3 = 0, i = 0;
#if defined(__ARM_FEATURE_DSP) && HX_LITTLE_ENDIAN
#define PAIRS(from, s, t)                                                                  \
  {                                                                                        \
    const uint32_t four = hx_u32(from + i);                                                \
    const int16x2_t w02 = __sxtb16((int8x4_t)four), w13 = __sxtb16((int8x4_t)(four >> 8)); \
    s = __smlad(x13, w13, __smlad(x02, w02, s));                                           \
    if (two) t = __smlad(z13, w13, __smlad(z02, w02, t));                                  \
  }
  for (; i + 4 <= n; i += 4) {
    const int16x2_t x02 = (int16x2_t)hx_u32(x + i), x13 = (int16x2_t)hx_u32(x + i + 2);
    const int16x2_t z02 = two ? (int16x2_t)hx_u32(z + i) : 0, z13 = two ? (int16x2_t)hx_u32(z + i + 2) : 0;
    PAIRS(y, s0, t0)
    PAIRS(y1, s1, t1)
    PAIRS(y2, s2, t2)
    PAIRS(y3, s3, t3)
  }
#undef PAIRS
#endif
  for (; i < n; ++i) {
    const int16_t a = x[PLACE(i)], b = two ? z[PLACE(i)] : 0;
    s0 += a * (int16_t)y[i];
    s1 += a * (int16_t)y1[i];
    s2 += a * (int16_t)y2[i];
    s3 += a * (int16_t)y3[i];
    if (two) {
      t0 += b * (int16_t)y[i];
      t1 += b * (int16_t)y1[i];
      t2 += b * (int16_t)y2[i];
      t3 += b * (int16_t)y3[i];
    }
  }
  sums[0] += (uint32_t)s0;
  sums[1] += (uint32_t)s1;
  sums[2] += (uint32_t)s2;
  sums[3] += (uint32_t)s3;
  if (!two) return;
  sums[HX_BLOCK] += (uint32_t)t0;
  sums[HX_BLOCK + 1] += (uint32_t)t1;
  sums[HX_BLOCK + 2] += (uint32_t)t2;
  sums[HX_BLOCK + 3] += (uint32_t)t3;
}

/* Adds products of one column, for any dtype, zero point and stride. */
static HX_NOINLINE void any_column(const hx_quantized* q, int32_t column, const int16_t* x, int pixels, int32_t n,
                                   const uint8_t* y, int32_t y_step, uint32_t* sums) {
  const uint8_t flip = hx_flip(q->y_flip);
  const int32_t zero = (q->y_zero.data ? read_byte(q->y_zero.dtype, of_column(&q->y_zero, column)) : 0) - flip;
  int32_t i;
  for (; pixels > 0; --pixels, x += HX_CHUNK, sums += HX_BLOCK)
    for (i = 0; i < n; ++i) *sums += (uint32_t)(x[PLACE(i)] * ((int8_t)(y[(size_t)i * (size_t)y_step] ^ flip) - zero));
}

void hx_add_products(const hx_quantized* q, const hx_columns* columns, const int16_t* x, int pixels, int32_t n,
                     const uint8_t* y, int32_t y_next, int32_t y_step, uint32_t* sums) {
  const int plain = y_step == 1 && !hx_flip(q->y_flip) && !q->y_zero.data;
  int32_t i = 0;
  for (; plain && i + 4 <= columns->num; i += 4) {
    const int8_t* from = (const int8_t*)y + (size_t)i * (size_t)y_next;
    if (pixels == 2)
      four_columns(x, 1, n, from, y_next, sums + i);
    else
      four_columns(x, 0, n, from, y_next, sums + i);
  }
  for (; i < columns->num; ++i)
    any_column(q, columns->first + i, x, pixels, n, y + (size_t)i * (size_t)y_next, y_step, sums + i);
}
