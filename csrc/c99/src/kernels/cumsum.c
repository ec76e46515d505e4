/* cumsum along an axis: the running sum of fp32 is in double, as on the host; integers wrap. */
#include "../internal.h"

enum { AXIS, EXCLUSIVE, REVERSE, WORDS };

HX_CHECK_FUNCTION hx_status check(const hx_call* call) {
  hx_view v[2];
  int32_t axis;
  if (!hx_operands(call, 1, v)) return hx_refuse(call, "need one input");
  axis = hx_attr_n(call, AXIS);
  if (axis < -v[0].rank || axis >= v[0].rank) return hx_refuse(call, "axis: need one of the input's");
  if (v[0].dtype != v[1].dtype || !hx_same_shape(&v[0], &v[1]))
    return hx_refuse(call, "output: need the input's dtype and shape");
  if (v[0].ring || v[1].ring) return hx_refuse(call, "got a ring, need whole tensors");
  if (v[0].dtype != HX_FP32 && (!hx_is_whole(v[0].dtype) || hx_is(v[0].dtype, HX_BOOL)))
    return hx_fail(call->net, HX_UNSUPPORTED, "steps", call->step, "cumsum",
                   "dtype: need fp32 or integers other than uint64");
  return HX_OK;
}

/* Sums one line. Steps are negative if the axis is summed from its end. */
static void sum_line(const hx_view* view, const uint8_t* x, ptrdiff_t x_step, uint8_t* to, ptrdiff_t to_step, int32_t n,
                     int is_exclusive) {
  double sum = 0;
  uint64_t count = 0;
  for (; n > 0; --n, x += x_step, to += to_step) {
    if (view->dtype == HX_FP32) {
      const double before = sum;
      sum += hx_f32(x);
      hx_put_f32(to, (float)(is_exclusive ? before : sum));
    } else {
      const uint64_t before = count;
      count += (uint64_t)hx_whole(x, view->dtype);
      hx_put_whole(to, view->item, hx_wrapped(is_exclusive ? before : count));
    }
  }
}

static void run(const hx_call* call, int cut, hx_range range) {
  hx_view v[2];
  hx_walk walk;
  ptrdiff_t steps[2];
  int32_t i, extent, axis;
  size_t k;
  const int is_reverse = hx_attr_i(call, REVERSE) != 0, is_exclusive = hx_attr_i(call, EXCLUSIVE) != 0;
  (void)cut;
  hx_operands(call, 1, v);
  axis = hx_attr_n(call, AXIS);
  if (axis < 0) axis += v[0].rank;
  extent = v[0].shape[axis];
  for (k = 0; k < 2; ++k) {
    steps[k] = v[k].strides[axis];
    v[k].shape[axis] = extent ? 1 : 0;
  }
  if (!hx_walk_begin(&walk, v, 2, -1, range)) return;
  do {
    for (i = 0; i < walk.count; ++i) {
      const uint8_t* x = walk.at[0] + (size_t)i * (size_t)walk.step[0];
      uint8_t* to = walk.at[1] + (size_t)i * (size_t)walk.step[1];
      if (is_reverse)
        sum_line(&v[0], x + (extent - 1) * steps[0], -steps[0], to + (extent - 1) * steps[1], -steps[1], extent,
                 is_exclusive);
      else
        sum_line(&v[0], x, steps[0], to, steps[1], extent, is_exclusive);
    }
  } while (hx_walk_next(&walk));
}

const hx_kernel hx_kernel_cumsum = {"cumsum", WORDS, 0, HX_NEEDS_ALL, HX_CHECK(check), 0, run};
