/* quantized_mean: the mean of 8-bit integers over some axes, rounded once to 8 bits. The integers may come as int32
 * sums. `count`: the integers of each result. running_sum: [1, H, W, C] -> [1, H, 1, C], row r has the sums over all
 * columns of rows 0 to r. A run of running_sum reads the previous row from the output, a tensor or a ring of rows. */
#include "reduce.h"

enum { COUNT = HX_REDUCE_WORDS, X_SCALE, X_ZERO, OUTPUT_SCALE, OUTPUT_ZERO, WORDS };

#define MOST_TERMS 8421504 /* number of bytes whose sum fits in int32 */

static int is_scale(float number) { return number > 0 && number <= FLT_MAX; }

static int32_t element(const hx_view* view, const uint8_t* at) {
  return hx_is(view->dtype, HX_INT8) ? hx_i8(at) : hx_is(view->dtype, HX_UINT8) ? *at : hx_signed(hx_u32(at));
}

hx_status hx_check_byte_mean(const hx_call* call, uint32_t count_word, uint32_t x_zero, uint32_t output_zero) {
  hx_view v[2];
  const hx_view *in = &v[0], *out = &v[1];
  const int32_t count = hx_attr_n(call, count_word), zero = hx_attr_n(call, x_zero);
  hx_status status = hx_check_reduce(call);
  if (status != HX_OK) return status;
  hx_views(call, 1, v);
  if ((!hx_is_byte(in->dtype) && in->dtype != HX_INT32) || !hx_is_byte(out->dtype))
    return hx_refuse(call, "dtypes: need bytes or int32 sums, and bytes");
  if (count < 1 || count > MOST_TERMS || (hx_is_byte(in->dtype) && hx_size(out) && count != hx_size(in) / hx_size(out)))
    return hx_refuse(call, "count: need the elements of each result");
  /* int32 sums may come from int8 or uint8: zero points of both dtypes are accepted. */
  if (!hx_holds(out->dtype, hx_attr_n(call, output_zero)) || !hx_holds(hx_is_byte(in->dtype) ? in->dtype
                                                                       : zero < 0            ? HX_INT8
                                                                                             : HX_UINT8,
                                                                       zero))
    return hx_refuse(call, hx_bad_zero);
  return HX_OK;
}

HX_CHECK_FUNCTION hx_status check_mean(const hx_call* call) {
  const hx_status status = hx_check_byte_mean(call, COUNT, X_ZERO, OUTPUT_ZERO);
  if (status != HX_OK) return status;
  if (!is_scale(hx_attr_f(call, X_SCALE)) || !is_scale(hx_attr_f(call, OUTPUT_SCALE)))
    return hx_refuse(call, "scales: need positive numbers");
  return HX_OK;
}

static HX_NOINLINE int64_t sum_of(const hx_view* view) {
  const hx_range none = {0, 0};
  hx_walk walk;
  int64_t total = 0;
  int32_t i;
  if (!hx_walk_begin(&walk, view, 1, -1, none)) return 0;
  do {
    const uint8_t* at = walk.at[0];
    for (i = 0; i < walk.count; ++i, at += walk.step[0]) total += element(view, at);
  } while (hx_walk_next(&walk));
  return total;
}

static uint8_t mean_of(const hx_call* call, int64_t sum, hx_dtype dtype) {
  const int64_t count = hx_attr_i(call, COUNT);
  const float low = hx_is_signed(dtype) ? -128.0f : 0.0f;
  const float mean = hx_share(sum - count * hx_attr_i(call, X_ZERO), hx_attr_f(call, X_SCALE), (int32_t)count);
  const float steps = hx_round(mean / hx_attr_f(call, OUTPUT_SCALE)) + (float)(int32_t)hx_attr_i(call, OUTPUT_ZERO);
  return (uint8_t)(int32_t)hx_clamp(steps, low, low + 255);
}

void hx_run_byte_mean(const hx_call* call, uint8_t (*of_sum)(const hx_call*, int64_t, hx_dtype)) {
  const hx_range none = {0, 0};
  hx_view kept[2], inner;
  hx_walk outer;
  int32_t i;
  hx_split_reduce(call, kept, &inner);
  if (!hx_walk_begin(&outer, kept, 2, -1, none)) return;
  do {
    for (i = 0; i < outer.count; ++i) {
      inner.data = outer.at[0] + (size_t)i * (size_t)outer.step[0];
      *(outer.at[1] + (size_t)i * (size_t)outer.step[1]) = of_sum(call, sum_of(&inner), kept[1].dtype);
    }
  } while (hx_walk_next(&outer));
}

static void run_mean(const hx_call* call, int axis, hx_range range) {
  (void)axis;
  (void)range;
  hx_run_byte_mean(call, mean_of);
}

HX_CHECK_FUNCTION hx_status check_sum(const hx_call* call) {
  hx_view v[2];
  const hx_view *in = &v[0], *out = &v[1];
  int axis;
  if (!hx_operands(call, 1, v)) return hx_refuse(call, "need one input");
  if (!hx_is_byte(in->dtype) || out->dtype != HX_INT32) return hx_refuse(call, "dtypes: need bytes and int32");
  if (in->rank != 4 || out->rank != 4 || in->shape[0] != 1) return hx_refuse(call, "shapes: need rank 4 and batch 1");
  for (axis = 0; axis < 4; ++axis)
    if (out->shape[axis] != (axis == 2 ? 1 : in->shape[axis]))
      return hx_refuse(call, "shapes: need (1, H, W, C) and (1, H, 1, C)");
  if (in->shape[1] && in->shape[2] > MOST_TERMS / in->shape[1]) return hx_refuse(call, "input: got too many pixels");
  return HX_OK;
}

static uint8_t* place(const hx_view* view, int32_t row) {
  return view->data + (size_t)(view->ring ? row % view->ring : row) * (size_t)view->strides[1];
}

static void run_sum(const hx_call* call, int axis, hx_range range) {
  hx_view v[2];
  const hx_view *in = &v[0], *out = &v[1];
  int32_t row, x, c;
  hx_views(call, 1, v);
  if (axis != 1) {
    range.begin = 0;
    range.end = out->shape[1];
  }
  for (row = range.begin; row < range.end; ++row) {
    const uint8_t *from = place(in, row), *before = row ? place(out, row - 1) : 0;
    uint8_t* to = place(out, row);
    for (c = 0; c < in->shape[3]; ++c) {
      const size_t channel = (size_t)c * (size_t)out->strides[3];
      int32_t total = before ? hx_signed(hx_u32(before + channel)) : 0;
      const uint8_t* at = from + (size_t)c * (size_t)in->strides[3];
      for (x = 0; x < in->shape[2]; ++x, at += in->strides[2])
        total = hx_signed((uint32_t)total + (uint32_t)element(in, at));
      hx_put_u32(to + channel, (uint32_t)total);
    }
  }
}

const hx_kernel hx_kernel_quantized_mean = {"quantized_mean",     WORDS, 0,       HX_NEEDS_ALL,
                                            HX_CHECK(check_mean), 0,     run_mean};
const hx_kernel hx_kernel_running_sum = {"running_sum",       0, HX_CUT_ROWS, HX_NEEDS_ORDER,
                                         HX_CHECK(check_sum), 0, run_sum};
