/* argsort: the indices that sort an axis, by a heap sort in the output's memory. NaN is larger than all numbers.
 * Equal elements are ordered by index. */
#include "../internal.h"

enum { AXIS, DESCENDING, WORDS };

HX_CHECK_FUNCTION hx_status check(const hx_call* call) {
  hx_view v[2];
  int32_t axis;
  if (!hx_operands(call, 1, v)) return hx_refuse(call, "need one input");
  axis = hx_attr_n(call, AXIS);
  if (axis < -v[0].rank || axis >= v[0].rank) return hx_refuse(call, "axis: need one of the input's");
  if (!hx_same_shape(&v[0], &v[1])) return hx_refuse(call, "output: need the input's shape");
  if (!hx_is(v[1].dtype, HX_INT32) && !hx_is(v[1].dtype, HX_INT64))
    return hx_refuse(call, "output: need int32 or int64");
  if (v[0].ring || v[1].ring) return hx_refuse(call, "got a ring, need whole tensors");
  if (v[0].space == v[1].space && v[0].offset == v[1].offset && hx_size(&v[0]))
    return hx_refuse(call, "output: need memory of its own");
  if (v[0].dtype != HX_FP32 && !hx_is_whole(v[0].dtype))
    return hx_fail(call->net, HX_UNSUPPORTED, "steps", call->step, "argsort",
                   "dtype: need fp32 or integers other than uint64");
  return HX_OK;
}

typedef struct line {
  const uint8_t* x;
  uint8_t* to;
  size_t x_step, to_step;
  hx_dtype dtype;
  int32_t item; /* bytes of an index */
  int is_descending;
} line;

static int32_t index_at(const line* l, int32_t i) {
  return hx_signed(hx_u32(l->to + (size_t)i * l->to_step)); /* the lower half of an int64 */
}

static void put_index(const line* l, int32_t i, int32_t index) {
  uint8_t* to = l->to + (size_t)i * l->to_step;
  hx_put_u32(to, (uint32_t)index);
  if (l->item == 8) hx_put_u32(to + 4, 0);
}

/* True if element a comes after element b. */
static int is_after(const line* l, int32_t a, int32_t b) {
  const uint8_t *p = l->x + (size_t)a * l->x_step, *q = l->x + (size_t)b * l->x_step;
  int is_more, is_less;
  if (l->dtype == HX_FP32) {
    const float x = hx_f32(p), y = hx_f32(q);
    is_more = x != x ? y == y : x > y;
    is_less = y != y ? x == x : x < y;
  } else {
    const int64_t x = hx_whole(p, l->dtype), y = hx_whole(q, l->dtype);
    is_more = x > y;
    is_less = x < y;
  }
  if (!is_more && !is_less) return a > b;
  return l->is_descending ? is_less : is_more;
}

/* Moves the index at `root` down the heap until no child's element comes later. */
static void sift(const line* l, int32_t root, int32_t n) {
  const int32_t index = index_at(l, root);
  while (root < n / 2) {
    int32_t child = 2 * root + 1;
    if (child + 1 < n && is_after(l, index_at(l, child + 1), index_at(l, child))) ++child;
    if (!is_after(l, index_at(l, child), index)) break;
    put_index(l, root, index_at(l, child));
    root = child;
  }
  put_index(l, root, index);
}

static void sort_line(const line* l, int32_t n) {
  int32_t i;
  for (i = 0; i < n; ++i) put_index(l, i, i);
  for (i = n / 2; i > 0; --i) sift(l, i - 1, n);
  for (i = n - 1; i > 0; --i) {
    const int32_t last = index_at(l, 0);
    put_index(l, 0, index_at(l, i));
    put_index(l, i, last);
    sift(l, 0, i);
  }
}

static void run(const hx_call* call, int cut, hx_range range) {
  hx_view v[2];
  hx_walk walk;
  line l;
  int32_t i, extent, axis;
  int k;
  (void)cut;
  hx_operands(call, 1, v);
  axis = hx_attr_n(call, AXIS);
  if (axis < 0) axis += v[0].rank;
  extent = v[0].shape[axis];
  l.x_step = (size_t)v[0].strides[axis];
  l.to_step = (size_t)v[1].strides[axis];
  l.dtype = v[0].dtype;
  l.item = v[1].item;
  l.is_descending = hx_attr_i(call, DESCENDING) != 0;
  for (k = 0; k < 2; ++k) v[k].shape[axis] = extent ? 1 : 0;
  if (!hx_walk_begin(&walk, v, 2, -1, range)) return;
  do {
    for (i = 0; i < walk.count; ++i) {
      l.x = walk.at[0] + (size_t)i * (size_t)walk.step[0];
      l.to = walk.at[1] + (size_t)i * (size_t)walk.step[1];
      sort_line(&l, extent);
    }
  } while (hx_walk_next(&walk));
}

const hx_kernel hx_kernel_argsort = {"argsort", WORDS, 0, HX_NEEDS_ALL, HX_CHECK(check), 0, run};
