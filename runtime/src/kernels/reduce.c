/* Reductions of fp32 over any axes. Sums are made in blocks of 128 terms, and these in blocks of 128, so that the
 * rounding errors of long sums stay small; where the innermost axis is kept the bits are the host's. */
#include "reduce.h"

enum { AXES = HX_REDUCE_AXES, KEEP = HX_REDUCE_KEEP };

typedef enum kind { SUM, MEAN, MAXIMUM, MINIMUM } kind;

/* A bit for each reduced axis. */
static uint32_t reduced_axes(const hx_call* call, int rank) {
  const int32_t count = hx_attr_n(call, AXES);
  uint32_t bits = count ? 0 : 0xff;
  int32_t i;
  for (i = 0; i < count; ++i) {
    const int32_t axis = hx_attr_n(call, AXES + 1 + (uint32_t)i);
    bits |= 1u << (axis < 0 ? axis + rank : axis);
  }
  return bits;
}

hx_status hx_check_reduce(const hx_call* call) {
  hx_view v[2];
  const hx_view *in = &v[0], *out = &v[1];
  const int32_t count = hx_attr_n(call, AXES);
  int32_t i;
  uint32_t reduced;
  int axis, rank = 0;
  if (!hx_operands(call, 1, v)) return hx_refuse(call, "need one input");
  if (count < 0 || count > 8) return hx_refuse(call, "axes: need up to 8");
  for (i = 0; i < count; ++i) {
    axis = hx_attr_n(call, AXES + 1 + (uint32_t)i);
    if (axis < -in->rank || axis >= in->rank) return hx_refuse(call, "axes: need those of the input");
  }
  reduced = reduced_axes(call, in->rank);
  for (axis = 0; axis < in->rank; ++axis) {
    const int is_reduced = (int)(reduced >> axis & 1);
    if (!hx_attr_i(call, KEEP) && is_reduced) continue;
    if (rank == out->rank || out->shape[rank] != (is_reduced ? 1 : in->shape[axis]))
      return hx_refuse(call, "output: got another shape");
    ++rank;
  }
  return rank == out->rank ? HX_OK : hx_refuse(call, "output: got another rank");
}

HX_CHECK_FUNCTION hx_status check(const hx_call* call) {
  hx_view in, out;
  const hx_status status = hx_check_reduce(call);
  if (status != HX_OK) return status;
  hx_input(call, 0, &in);
  hx_output(call, 0, &out);
  return in.dtype == HX_FP32 && out.dtype == HX_FP32 ? HX_OK : hx_refuse(call, "dtype: need fp32");
}

static float join(kind k, float a, float b) {
  if (k == SUM || k == MEAN) return a + b;
  return b != b || (k == MAXIMUM ? b > a : b < a) ? b : a;
}

/* Over all elements of a view. */
static HX_NOINLINE float reduce(kind k, const hx_view* view) {
  const hx_range none = {0, 0};
  hx_walk walk;
  const float identity = k == MAXIMUM ? -HX_INFINITY : k == MINIMUM ? HX_INFINITY : 0.0f;
  float part = identity, middle = identity, total = identity;
  int32_t steps = 0, folds = 0, i;
  if (!hx_walk_begin(&walk, view, 1, -1, none)) return identity;
  do {
    const uint8_t* at = walk.at[0];
    for (i = 0; i < walk.count; ++i, at += walk.step[0]) {
      part = join(k, part, hx_f32(at));
      if (++steps < 128) continue;
      middle = join(k, middle, part);
      part = identity;
      steps = 0;
      if (++folds < 128) continue;
      total = join(k, total, middle);
      middle = identity;
      folds = 0;
    }
  } while (hx_walk_next(&walk));
  return join(k, total, join(k, middle, part));
}

HX_NOINLINE float hx_split_reduce(const hx_call* call, hx_view* kept, hx_view* reduced_view) {
  hx_view in, out, inner;
  uint32_t reduced;
  int axis;
  float count = 1;
  hx_input(call, 0, &in);
  hx_output(call, 0, &out);
  reduced = reduced_axes(call, in.rank);
  inner = in;
  inner.rank = 0;
  kept[0] = in;
  kept[0].rank = 0;
  for (axis = 0; axis < in.rank; ++axis) {
    hx_view* to = reduced >> axis & 1 ? &inner : &kept[0];
    to->shape[to->rank] = in.shape[axis];
    to->strides[to->rank++] = in.strides[axis];
    if (reduced >> axis & 1) count *= (float)in.shape[axis];
  }
  kept[0].ring = inner.ring = 0;
  kept[1] = out;
  if (hx_attr_i(call, KEEP)) { /* without the axes that are reduced */
    kept[1].rank = 0;
    for (axis = 0; axis < in.rank; ++axis)
      if (!(reduced >> axis & 1)) {
        kept[1].shape[kept[1].rank] = out.shape[axis];
        kept[1].strides[kept[1].rank++] = out.strides[axis];
      }
  }
  *reduced_view = inner;
  return count;
}

static void run(const hx_call* call, kind k) {
  hx_view kept[2], inner;
  hx_walk outer;
  hx_range none = {0, 0};
  const float count = hx_split_reduce(call, kept, &inner);
  int32_t i;
  if (!hx_walk_begin(&outer, kept, 2, -1, none)) return;
  do {
    for (i = 0; i < outer.count; ++i) {
      float result;
      inner.data = outer.at[0] + (size_t)i * (size_t)outer.step[0];
      result = reduce(k, &inner);
      if (k == MEAN) result /= count;
      hx_put_f32(outer.at[1] + (size_t)i * (size_t)outer.step[1], result);
    }
  } while (hx_walk_next(&outer));
}

#define REDUCTION(name, k)                                                                                          \
  static void run_##name(const hx_call* call, int axis, hx_range range) {                                           \
    (void)axis;                                                                                                     \
    (void)range;                                                                                                    \
    run(call, k);                                                                                                   \
  }                                                                                                                 \
  const hx_kernel hx_kernel_reduce_##name = {"reduce_" #name, HX_REDUCE_WORDS, 0, HX_NEEDS_ALL, HX_CHECK(check), 0, \
                                             run_##name};

REDUCTION(sum, SUM)
REDUCTION(mean, MEAN)
REDUCTION(max, MAXIMUM)
REDUCTION(min, MINIMUM)
