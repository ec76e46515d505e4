/* layer_norm and rms_norm: rows of the last axes, in fp32. */
#include "../internal.h"

enum { AXES = 0, EPSILON = HX_LIST_WORDS };

static int is_dense(const hx_view* view) {
  int64_t stride = view->item;
  int axis;
  if (hx_size(view) == 0) return 1;
  for (axis = view->rank - 1; axis >= 0; --axis) {
    if (view->shape[axis] != 1 && view->strides[axis] != stride) return 0;
    stride *= view->shape[axis];
  }
  return view->ring == 0;
}

HX_CHECK_FUNCTION hx_status check(const hx_call* call) {
  hx_view x, out, parameter;
  int64_t count, i;
  uint32_t input;
  if (call->num_inputs > (call->kernel->name[0] == 'l' ? 3u : 2u) || !hx_input(call, 0, &x))
    return hx_refuse(call, "need x, gamma and, of layer_norm, beta");
  hx_output(call, 0, &out);
  count = hx_attr_i(call, AXES);
  if (x.dtype != HX_FP32 || out.dtype != HX_FP32 || !hx_same_shape(&x, &out) || !is_dense(&x) || !is_dense(&out))
    return hx_refuse(call, "need dense fp32 of one shape");
  if (count < 0 || count > x.rank) return hx_refuse(call, "axes: need those of x");
  for (i = 0; i < count; ++i) {
    const int64_t axis = hx_attr_i(call, AXES + 1 + (uint32_t)i);
    if ((axis < 0 ? axis + x.rank : axis) != x.rank - count + i) return hx_refuse(call, "axes: need the last ones");
  }
  for (input = 1; input < call->num_inputs; ++input) {
    if (!hx_input(call, input, &parameter)) continue;
    if (parameter.dtype != HX_FP32 || parameter.rank != count || !is_dense(&parameter))
      return hx_refuse(call, "gamma and beta: need dense fp32 of the last axes");
    for (i = 0; i < count; ++i)
      if (parameter.shape[i] != x.shape[x.rank - count + i])
        return hx_refuse(call, "gamma and beta: need the shape of the last axes");
  }
  return HX_OK;
}

/* Returns the sum of x - center, or of the squares of x - center, in blocks. */
static float sum_of(const uint8_t* x, int32_t n, float center, int squares) {
  const int32_t block = hx_sum_block(n);
  float total = 0, part = 0;
  int32_t i;
  for (i = 0; i < n; ++i) {
    const float d = hx_f32(x + 4 * (size_t)i) - center;
    part = squares ? hx_multiply_add(d, d, part) : part + d;
    if ((i + 1) % block) continue;
    total += part;
    part = 0;
  }
  return total + part;
}

static void run_rows(const hx_call* call, int centers) {
  const float epsilon = hx_attr_f(call, EPSILON);
  hx_view x, out, gamma, beta;
  const int has_gamma = hx_input(call, 1, &gamma), has_beta = centers && hx_input(call, 2, &beta);
  int32_t n = 1, rows, row, i, axis;
  hx_input(call, 0, &x);
  hx_output(call, 0, &out);
  for (axis = x.rank - (int32_t)hx_attr_i(call, AXES); axis < x.rank; ++axis) n *= x.shape[axis];
  if (n == 0) return;
  rows = hx_size(&x) / n;
  for (row = 0; row < rows; ++row) {
    const uint8_t* from = x.data + (size_t)row * (size_t)n * 4;
    uint8_t* to = out.data + (size_t)row * (size_t)n * 4;
    float mean = 0, rest = 0, variance, scale, shift;
    if (centers) {
      mean = sum_of(from, n, 0, 0) / (float)n;
      rest = sum_of(from, n, mean, 0) / (float)n; /* the rounding error of the mean */
    }
    variance = sum_of(from, n, mean, 1) / (float)n - rest * rest;
    scale = 1 / hx_sqrt((variance < 0 ? 0 : variance) + epsilon);
    shift = -rest * scale;
    for (i = 0; i < n; ++i) {
      float y = hx_fma(hx_f32(from + 4 * (size_t)i) - mean, scale, shift);
      if (has_gamma) y *= hx_f32(gamma.data + 4 * (size_t)i);
      if (has_beta) y += hx_f32(beta.data + 4 * (size_t)i);
      hx_put_f32(to + 4 * (size_t)i, y);
    }
  }
}

static void run_layer(const hx_call* call, int axis, hx_range range) {
  (void)axis;
  (void)range;
  run_rows(call, 1);
}

static void run_rms(const hx_call* call, int axis, hx_range range) {
  (void)axis;
  (void)range;
  run_rows(call, 0);
}

const hx_kernel hx_kernel_layer_norm = {"layer_norm", EPSILON + 1, 0, HX_NEEDS_ALL, HX_CHECK(check), 0, run_layer};
const hx_kernel hx_kernel_rms_norm = {"rms_norm", EPSILON + 1, 0, HX_NEEDS_ALL, HX_CHECK(check), 0, run_rms};
