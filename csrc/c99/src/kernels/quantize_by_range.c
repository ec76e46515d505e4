/* quantize_by_range: fp32 to int8, with a scale and zero point computed from the range of each row. A row has all
 * axes of x from `axis` on. Operations and their order are those on the host. */
#include "../internal.h"

enum { AXIS, SYMMETRIC, WORDS };
enum { X, Q, SCALE, ZERO, VIEWS };

#define FAR_STEPS 512.0f            /* too far for any zero point to shift into int8 */
#define LEAST_SCALE 1.17549435e-38f /* 2^-126, the smallest scale whose inverse is finite */

static int32_t first_axis(const hx_call* call, const hx_view* x) {
  const int32_t axis = hx_attr_n(call, AXIS);
  return axis < 0 ? axis + x->rank : axis;
}

static void read_views(const hx_call* call, hx_view* v) {
  uint32_t i;
  for (i = 0; i < VIEWS; ++i) hx_operand(call, i, &v[i]);
}

static int is_dense(const hx_view* view) {
  int32_t stride = view->item, axis;
  for (axis = view->rank - 1; axis >= 0; --axis) {
    if (view->shape[axis] > 1 && view->strides[axis] != stride) return 0;
    stride *= hx_max(view->shape[axis], 1);
  }
  return !view->ring;
}

HX_CHECK_FUNCTION hx_status check(const hx_call* call) {
  hx_view v[VIEWS];
  int32_t axis, i;
  if (call->num_inputs != 1 || call->num_outputs != 3 || !hx_operand(call, X, &v[X]))
    return hx_refuse(call, "need one input and three outputs");
  read_views(call, v);
  axis = hx_attr_n(call, AXIS);
  if (axis < -v[X].rank || axis >= v[X].rank) return hx_refuse(call, "axis: need one of the input's");
  axis = first_axis(call, &v[X]);
  if (v[X].dtype != HX_FP32 || !hx_is(v[Q].dtype, HX_INT8) || v[SCALE].dtype != HX_FP32 || v[ZERO].dtype != HX_FP32)
    return hx_refuse(call, "dtype: need fp32, and int8, fp32 and fp32 for the outputs");
  if (!hx_same_shape(&v[X], &v[Q]) || !hx_same_shape(&v[SCALE], &v[ZERO]) || v[SCALE].rank != v[X].rank)
    return hx_refuse(call, "outputs: need the input's shape, and a scale and a zero point for each row");
  for (i = 0; i < v[X].rank; ++i)
    if (v[SCALE].shape[i] != (i < axis ? v[X].shape[i] : 1) || (i >= axis && v[X].shape[i] == 0))
      return hx_refuse(call, "outputs: need a scale and a zero point for each row of elements");
  for (i = 0; i < VIEWS; ++i)
    if (!is_dense(&v[i])) return hx_refuse(call, "operands: need them without gaps or rings");
  return HX_OK;
}

static float size_of(float x) { return x < 0 ? -x : x; }

/* Rounds to the nearest integer, halves away from 0. NaN becomes 0, and large numbers are clamped to FAR_STEPS. */
static float nearest(float x) {
  const float size = size_of(x);
  int32_t whole;
  if (x != x) return 0;
  if (size >= FAR_STEPS) return x < 0 ? -FAR_STEPS : FAR_STEPS;
  whole = (int32_t)size;
  whole += size - (float)whole >= 0.5f;
  return (float)(x < 0 ? -whole : whole);
}

typedef struct grid {
  float scale, zero, inverse, least;
} grid;

static grid symmetric_grid(float low, float high) {
  const float largest = low != low ? low : -low > high ? -low : high;
  grid g = {1, 0, 127, -127};
  if (!(size_of(largest) <= 0)) {
    g.scale = size_of(largest) / 127;
    g.inverse = 127 / size_of(largest);
    if (size_of(largest) < 127 * LEAST_SCALE) {
      g.scale = LEAST_SCALE;
      g.inverse = 1 / LEAST_SCALE;
    }
  }
  return g;
}

static grid moved_grid(float low, float high) {
  grid g = {1, 0, 1, -128};
  float from_low, from_high;
  if (low > 0) low = 0;
  if (high < 0) high = 0;
  if (low >= high) return g;
  g.scale = (high - low) / 255;
  if (g.scale < LEAST_SCALE) g.scale = LEAST_SCALE;
  from_low = low / g.scale;
  from_high = high / g.scale;
  g.zero = nearest(size_of(from_low) + 128 < size_of(from_high) + 127 ? -128 - from_low : 127 - from_high);
  g.zero = hx_clamp(g.zero, -128, 127);
  g.inverse = 1 / g.scale;
  return g;
}

static grid grid_of(const uint8_t* x, int32_t n, int is_symmetric) {
  float low = hx_f32(x), high = low;
  int32_t i;
  for (i = 1; i < n; ++i) {
    const float value = hx_f32(x + 4 * (size_t)i);
    if (!(value >= low)) low = low != low ? low : value;
    if (!(value <= high)) high = high != high ? high : value;
  }
  return is_symmetric ? symmetric_grid(low, high) : moved_grid(low, high);
}

static void run(const hx_call* call, int axis, hx_range range) {
  hx_view v[VIEWS];
  const int is_symmetric = hx_attr_i(call, SYMMETRIC) != 0;
  int32_t n = 1, rows = 1, row, i;
  (void)axis;
  (void)range;
  read_views(call, v);
  for (i = 0; i < v[X].rank; ++i) *(i < first_axis(call, &v[X]) ? &rows : &n) *= v[X].shape[i];
  for (row = 0; row < rows; ++row) {
    const uint8_t* x = v[X].data + 4 * (size_t)row * (size_t)n;
    uint8_t* to = v[Q].data + (size_t)row * (size_t)n;
    const grid g = grid_of(x, n, is_symmetric);
    for (i = 0; i < n; ++i)
      to[i] = (uint8_t)(int32_t)hx_clamp(nearest(hx_f32(x + 4 * (size_t)i) * g.inverse) + g.zero, g.least, 127);
    hx_put_f32(v[SCALE].data + 4 * (size_t)row, g.scale);
    hx_put_f32(v[ZERO].data + 4 * (size_t)row, g.zero);
  }
}

const hx_kernel hx_kernel_quantize_by_range = {"quantize_by_range", WORDS, 0, HX_NEEDS_WHOLE, HX_CHECK(check), 0, run};
