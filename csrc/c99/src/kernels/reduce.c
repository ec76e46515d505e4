/* Reductions of fp32 over any axes; integers.c has the reductions of integers. 128 terms form a block, and 128 blocks
 * form a larger block, so that the rounding errors of long sums stay small. If the innermost axis is kept, results
 * equal the host's bit for bit.
 *
 * running_reduce: a sum, mean, maximum or minimum over the pixels of an image, row by row, with the bits of the op that
 * reduces the whole image. [1, H, W, C] or [1, H, C] -> [1, H, L, C]: row r has the partial results over rows 0 to r,
 * in L levels of blocks. The last row has the result, then zeros. A run of running_reduce reads the previous row from
 * the output, which may be a ring of one row. */
#include "reduce.h"

enum { AXES = HX_REDUCE_AXES, KEEP = HX_REDUCE_KEEP };

typedef enum kind { SUM, MEAN, MAXIMUM, MINIMUM, SQUARES, PRODUCT } kind;

/* Returns a mask with a bit for each reduced axis. */
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

HX_CHECK_FUNCTION hx_status check_floats(const hx_call* call) {
  hx_view in, out;
  const hx_status status = hx_check_reduce(call);
  if (status != HX_OK) return status;
  hx_input(call, 0, &in);
  hx_output(call, 0, &out);
  return in.dtype == HX_FP32 && out.dtype == HX_FP32 ? HX_OK : hx_refuse(call, "dtype: need fp32");
}

HX_CHECK_FUNCTION hx_status check(const hx_call* call) {
  hx_view in;
  const hx_status status = hx_check_reduce(call);
  if (status != HX_OK) return status;
  hx_input(call, 0, &in);
  return in.dtype == HX_FP32 ? check_floats(call) : hx_check_integer_reduce(call);
}

static float join(kind k, float a, float b) {
  if (k == PRODUCT) return a * b;
  if (k == SUM || k == MEAN || k == SQUARES) return a + b;
  return b != b || (k == MAXIMUM ? b > a : b < a) ? b : a;
}

#define BLOCK 128
#define LEVELS 3

/* Partial results of three levels: the current block, the current block of blocks, and everything before. */
typedef struct partial {
  kind k;
  int32_t terms, blocks;
  float level[LEVELS];
} partial;

static float identity_of(kind k) {
  return k == MAXIMUM ? -HX_INFINITY : k == MINIMUM ? HX_INFINITY : k == PRODUCT ? 1.0f : 0.0f;
}

static void begin(partial* p, kind k) {
  p->k = k;
  p->terms = p->blocks = 0;
  p->level[0] = p->level[1] = p->level[2] = identity_of(k);
}

static HX_NOINLINE void take(partial* p, const uint8_t* at, int32_t step, int32_t n) {
  for (; n > 0; --n, at += step) {
    const float x = hx_f32(at);
    p->level[0] = join(p->k, p->level[0], p->k == SQUARES ? x * x : x);
    if (++p->terms < BLOCK) continue;
    p->level[1] = join(p->k, p->level[1], p->level[0]);
    p->level[0] = identity_of(p->k);
    p->terms = 0;
    if (++p->blocks < BLOCK) continue;
    p->level[2] = join(p->k, p->level[2], p->level[1]);
    p->level[1] = identity_of(p->k);
    p->blocks = 0;
  }
}

static float joined(const partial* p) { return join(p->k, p->level[2], join(p->k, p->level[1], p->level[0])); }

/* Reduces all elements of a view. */
static HX_NOINLINE float reduce(kind k, const hx_view* view) {
  const hx_range none = {0, 0};
  hx_walk walk;
  partial p;
  begin(&p, k);
  if (!hx_walk_begin(&walk, view, 1, -1, none)) return identity_of(k);
  do take(&p, walk.at[0], walk.step[0], walk.count);
  while (hx_walk_next(&walk));
  return joined(&p);
}

HX_NOINLINE float hx_split_reduce(const hx_call* call, hx_view* kept, hx_view* reduced_view) {
  hx_view v[2], inner;
  const hx_view *in = &v[0], *out = &v[1];
  uint32_t reduced;
  int axis;
  float count = 1;
  hx_views(call, 1, v);
  reduced = reduced_axes(call, in->rank);
  inner = *in;
  inner.rank = 0;
  kept[0] = *in;
  kept[0].rank = 0;
  for (axis = 0; axis < in->rank; ++axis) {
    hx_view* to = reduced >> axis & 1 ? &inner : &kept[0];
    to->shape[to->rank] = in->shape[axis];
    to->strides[to->rank++] = in->strides[axis];
    if (reduced >> axis & 1) count *= (float)in->shape[axis];
  }
  kept[0].ring = inner.ring = 0;
  kept[1] = *out;
  if (hx_attr_i(call, KEEP)) { /* drop the reduced axes */
    kept[1].rank = 0;
    for (axis = 0; axis < in->rank; ++axis)
      if (!(reduced >> axis & 1)) {
        kept[1].shape[kept[1].rank] = out->shape[axis];
        kept[1].strides[kept[1].rank++] = out->strides[axis];
      }
  }
  *reduced_view = inner;
  return count;
}

static hx_integer_op integer_op(kind k) {
  return k == MAXIMUM ? HX_MAXIMUM : k == MINIMUM ? HX_MINIMUM : k == PRODUCT ? HX_MUL : HX_ADD;
}

static void run(const hx_call* call, kind k) {
  hx_view kept[2], inner;
  hx_walk outer;
  hx_range none = {0, 0};
  const float count = hx_split_reduce(call, kept, &inner);
  int32_t i;
  if (inner.dtype != HX_FP32) {
    hx_run_integer_reduce(integer_op(k), k == MEAN, kept, &inner);
    return;
  }
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

#define REDUCTION(name, k, check)                                                                                   \
  static void run_##name(const hx_call* call, int axis, hx_range range) {                                           \
    (void)axis;                                                                                                     \
    (void)range;                                                                                                    \
    run(call, k);                                                                                                   \
  }                                                                                                                 \
  const hx_kernel hx_kernel_reduce_##name = {"reduce_" #name, HX_REDUCE_WORDS, 0, HX_NEEDS_ALL, HX_CHECK(check), 0, \
                                             run_##name};

REDUCTION(sum, SUM, check)
REDUCTION(mean, MEAN, check)
REDUCTION(max, MAXIMUM, check)
REDUCTION(min, MINIMUM, check)
REDUCTION(prod, PRODUCT, check)
REDUCTION(sum_square, SQUARES, check_floats)

/* ---- row by row ---- */

enum { KIND, RUNNING_WORDS };

static int kind_of(const hx_call* call) {
  static const char* const kNames[] = {"sum", "mean", "max", "min"};
  int k = 0;
  while (k < 4 && !hx_same(hx_attr_s(call, KIND), kNames[k])) ++k;
  return k;
}

/* Returns the number of levels. A level is used only after the previous level has been full once. */
static int32_t levels_of(kind k, int32_t rows, int32_t columns) {
  int32_t levels = 1, most = BLOCK;
  if (k == MAXIMUM || k == MINIMUM) return 1;
  for (; levels < LEVELS && rows > most / columns; most *= BLOCK) ++levels;
  return levels;
}

HX_CHECK_FUNCTION hx_status check_running(const hx_call* call) {
  hx_view in, out;
  int32_t columns;
  if (call->num_inputs != 1 || !hx_input(call, 0, &in)) return hx_refuse(call, "need one input");
  hx_output(call, 0, &out);
  if (!hx_is_string(call, KIND) || kind_of(call) == 4) return hx_refuse(call, "kind: need sum, mean, max or min");
  if (in.dtype != HX_FP32 || out.dtype != HX_FP32) return hx_refuse(call, "dtype: need fp32");
  if ((in.rank != 3 && in.rank != 4) || in.shape[0] != 1 || hx_size(&in) == 0)
    return hx_refuse(call, "input: need (1, H, W, C) or (1, H, C) with elements");
  columns = in.rank == 3 ? 1 : in.shape[2];
  if (out.rank != 4 || out.shape[0] != 1 || out.shape[1] != in.shape[1] ||
      out.shape[2] != levels_of((kind)kind_of(call), in.shape[1], columns) || out.shape[3] != in.shape[in.rank - 1])
    return hx_refuse(call, "output: need (1, H, levels of sums, C)");
  return HX_OK;
}

static uint8_t* row_of(const hx_view* view, int32_t row) {
  return view->data + (size_t)(view->ring ? row % view->ring : row) * (size_t)view->strides[1];
}

static void run_running(const hx_call* call, int axis, hx_range range) {
  const kind k = (kind)kind_of(call);
  hx_view in, out;
  int32_t row, c, i, columns;
  hx_input(call, 0, &in);
  hx_output(call, 0, &out);
  columns = in.rank == 3 ? 1 : in.shape[2];
  if (axis != 1) {
    range.begin = 0;
    range.end = in.shape[1];
  }
  for (row = range.begin; row < range.end; ++row)
    for (c = 0; c < out.shape[3]; ++c) {
      const size_t channel = (size_t)c * (size_t)out.strides[3];
      partial p;
      begin(&p, k);
      p.terms = row * columns % BLOCK;
      p.blocks = row * columns / BLOCK % BLOCK;
      for (i = 0; row && i < out.shape[2]; ++i)
        p.level[i] = hx_f32(row_of(&out, row - 1) + channel + (size_t)i * (size_t)out.strides[2]);
      take(&p, row_of(&in, row) + (size_t)c * (size_t)in.strides[in.rank - 1], in.rank == 3 ? 0 : in.strides[2],
           columns);
      if (row + 1 == in.shape[1] || out.shape[2] == 1) {
        p.level[0] = joined(&p);
        p.level[1] = p.level[2] = 0;
      }
      if (row + 1 == in.shape[1] && k == MEAN) p.level[0] /= (float)(in.shape[1] * columns);
      for (i = 0; i < out.shape[2]; ++i)
        hx_put_f32(row_of(&out, row) + channel + (size_t)i * (size_t)out.strides[2], p.level[i]);
    }
}

const hx_kernel hx_kernel_running_reduce = {
    "running_reduce", RUNNING_WORDS, HX_CUT_ROWS, HX_NEEDS_ORDER, HX_CHECK(check_running), 0, run_running};
