/* softmax along one axis: subtract the maximum, exponentials, divide by their sum. */
#include "../internal.h"

HX_CHECK_FUNCTION hx_status check(const hx_call* call) {
  hx_view v[2];
  const int32_t axis = hx_attr_n(call, 0);
  if (!hx_operands(call, 1, v)) return hx_refuse(call, "need one input");
  if (v[0].dtype != HX_FP32 || v[1].dtype != HX_FP32 || !hx_same_shape(&v[0], &v[1]))
    return hx_refuse(call, "need fp32 of one shape");
  return axis < -v[0].rank || axis >= v[0].rank ? hx_refuse(call, "axis: need one of the input's") : HX_OK;
}

static void line(const uint8_t* x, int32_t x_step, uint8_t* y, int32_t y_step, int32_t n) {
  const int32_t block = hx_sum_block(n);
  float top = -HX_INFINITY, sum = 0, part = 0, factor;
  int32_t i;
  for (i = 0; i < n; ++i) {
    const float value = hx_f32(x + (size_t)i * (size_t)x_step);
    if (value > top) top = value;
  }
  for (i = 0; i < n; ++i) {
    const float e = hx_exp(hx_f32(x + (size_t)i * (size_t)x_step) - top);
    hx_put_f32(y + (size_t)i * (size_t)y_step, e);
    part += e;
    if ((i + 1) % block == 0) {
      sum += part;
      part = 0;
    }
  }
  factor = 1 / (sum + part);
  for (i = 0; i < n; ++i) hx_put_f32(y + (size_t)i * (size_t)y_step, hx_f32(y + (size_t)i * (size_t)y_step) * factor);
}

static void run(const hx_call* call, int axis, hx_range range) {
  hx_view v[2];
  hx_walk walk;
  int along, n, x_step, y_step;
  int32_t i;
  hx_operands(call, 1, v);
  along = hx_attr_n(call, 0) < 0 ? hx_attr_n(call, 0) + v[0].rank : hx_attr_n(call, 0);
  n = v[0].shape[along];
  x_step = v[0].strides[along];
  y_step = v[1].strides[along];
  if (n == 0) return;
  v[0].shape[along] = v[1].shape[along] = 1;
  if (!hx_walk_begin(&walk, v, 2, axis, range)) return;
  do {
    for (i = 0; i < walk.count; ++i)
      line(walk.at[0] + (size_t)i * (size_t)walk.step[0], x_step, walk.at[1] + (size_t)i * (size_t)walk.step[1], y_step,
           n);
  } while (hx_walk_next(&walk));
}

const hx_kernel hx_kernel_softmax = {"softmax", 1, 0, HX_NEEDS_ALL, HX_CHECK(check), 0, run};
