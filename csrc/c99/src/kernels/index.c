/* Kernels on indices: gather along an axis, reverse, and the index of the largest or smallest number. Indices are
 * known only when a plan runs. An index outside of its axis ends the run with HX_BAD_INDEX. */
#include "index.h"

int hx_is_index(const hx_view* view) { return hx_is(view->dtype, HX_INT32) || hx_is(view->dtype, HX_INT64); }

int hx_axis_of(const hx_call* call, uint32_t word, int rank) {
  const int32_t axis = hx_attr_n(call, word);
  return axis < -rank || axis >= rank ? -1 : axis < 0 ? axis + rank : axis;
}

int32_t hx_index_in(const hx_call* call, const uint8_t* at, const hx_view* indices, int32_t extent) {
  const int64_t given = hx_is(indices->dtype, HX_INT64) ? hx_i64(at) : hx_signed(hx_u32(at));
  const int64_t index = given < 0 ? given + extent : given;
  if (index >= 0 && index < extent) return (int32_t)index;
  call->net->failed =
      hx_fail(call->net, HX_BAD_INDEX, "steps", call->step, call->kernel->name, "index: need one of the axis");
  return -1;
}

/* ---- gather: data[before, axis, after], indices[i] -> out[before, i, after] ---- */

HX_CHECK_FUNCTION hx_status check_gather(const hx_call* call) {
  hx_view v[3];
  int i, axis;
  if (!hx_operands(call, 2, v)) return hx_refuse(call, "need data and indices");
  axis = hx_axis_of(call, 0, v[0].rank);
  if (axis < 0) return hx_refuse(call, "axis: need one of the data's");
  if (!hx_is_index(&v[1])) return hx_refuse(call, "indices: need int32 or int64");
  if (v[0].dtype != v[2].dtype) return hx_refuse(call, "output: need the dtype of the data");
  if (v[2].rank != v[0].rank + v[1].rank - 1) return hx_refuse(call, "output: got another rank");
  if (v[0].ring || v[1].ring || v[2].ring) return hx_refuse(call, "got a ring, need whole tensors");
  for (i = 0; i < v[2].rank; ++i) {
    const int32_t need = i < axis               ? v[0].shape[i]
                         : i < axis + v[1].rank ? v[1].shape[i - axis]
                                                : v[0].shape[i - v[1].rank + 1];
    if (v[2].shape[i] != need) return hx_refuse(call, "output: got another shape");
  }
  return HX_OK;
}

/* Copies one slice of the data, at `index` along the axis, to the output's slice that begins at `to`. */
static HX_NOINLINE void copy_slice(const hx_view* data, const hx_view* out, int axis, int indices, int32_t index,
                                   uint8_t* to) {
  const hx_range none = {0, 0};
  hx_view v[2];
  hx_walk walk;
  int32_t k;
  int i;
  v[0] = *data;
  v[1] = *out;
  v[0].rank = v[1].rank = data->rank - 1;
  v[0].data = data->data + (size_t)index * (size_t)data->strides[axis];
  v[1].data = to;
  for (i = 0; i < v[0].rank; ++i) {
    const int from = i < axis ? i : i + 1, at = i < axis ? i : i + indices;
    v[0].shape[i] = data->shape[from];
    v[0].strides[i] = data->strides[from];
    v[1].shape[i] = out->shape[at];
    v[1].strides[i] = out->strides[at];
  }
  if (!hx_walk_begin(&walk, v, 2, -1, none)) return;
  do {
    const uint8_t* x = walk.at[0];
    uint8_t* y = walk.at[1];
    for (k = 0; k < walk.count; ++k, x += walk.step[0], y += walk.step[1]) memmove(y, x, (size_t)out->item);
  } while (hx_walk_next(&walk));
}

static void run_gather(const hx_call* call, int cut, hx_range range) {
  hx_view v[3], places[2];
  hx_walk walk;
  int axis, i;
  int32_t n;
  (void)cut;
  hx_operands(call, 2, v);
  axis = hx_axis_of(call, 0, v[0].rank);
  places[0] = v[1];
  places[1] = v[2];
  places[1].rank = v[1].rank;
  for (i = 0; i < v[1].rank; ++i) {
    places[1].shape[i] = v[2].shape[axis + i];
    places[1].strides[i] = v[2].strides[axis + i];
  }
  if (!hx_walk_begin(&walk, places, 2, -1, range)) return;
  do {
    const uint8_t* at = walk.at[0];
    uint8_t* to = walk.at[1];
    for (n = 0; n < walk.count; ++n, at += walk.step[0], to += walk.step[1]) {
      const int32_t index = hx_index_in(call, at, &v[1], v[0].shape[axis]);
      if (index < 0) return;
      copy_slice(&v[0], &v[2], axis, v[1].rank, index, to);
    }
  } while (hx_walk_next(&walk));
}

const hx_kernel hx_kernel_gather = {"gather", 1, 0, HX_NEEDS_ALL, HX_CHECK(check_gather), 0, run_gather};

/* ---- gather_along_axis: out[.., i, ..] = data[.., indices[.., i, ..], ..] ---- */

HX_CHECK_FUNCTION hx_status check_along(const hx_call* call) {
  hx_view v[3];
  int i, axis;
  if (!hx_operands(call, 2, v)) return hx_refuse(call, "need data and indices");
  axis = hx_axis_of(call, 0, v[0].rank);
  if (axis < 0) return hx_refuse(call, "axis: need one of the data's");
  if (!hx_is_index(&v[1])) return hx_refuse(call, "indices: need int32 or int64");
  if (v[0].dtype != v[2].dtype || v[0].rank != v[2].rank || !hx_same_shape(&v[1], &v[2]))
    return hx_refuse(call, "output: need the dtype of the data and the shape of the indices");
  if (v[0].ring || v[1].ring || v[2].ring) return hx_refuse(call, "got a ring, need whole tensors");
  for (i = 0; i < v[0].rank; ++i)
    if (i != axis && v[2].shape[i] > v[0].shape[i]) return hx_refuse(call, "indices: need no more than the data has");
  return HX_OK;
}

static void run_along(const hx_call* call, int cut, hx_range range) {
  hx_view v[3], walked[3];
  hx_walk walk;
  int axis;
  int32_t n, step;
  (void)cut;
  hx_operands(call, 2, v);
  axis = hx_axis_of(call, 0, v[0].rank);
  step = v[0].strides[axis];
  walked[0] = v[0];
  walked[1] = v[1];
  walked[2] = v[2];
  memcpy(walked[0].shape, v[2].shape, sizeof v[2].shape);
  walked[0].strides[axis] = 0;
  if (!hx_walk_begin(&walk, walked, 3, -1, range)) return;
  do {
    const uint8_t *x = walk.at[0], *at = walk.at[1];
    uint8_t* to = walk.at[2];
    for (n = 0; n < walk.count; ++n, x += walk.step[0], at += walk.step[1], to += walk.step[2]) {
      const int32_t index = hx_index_in(call, at, &v[1], v[0].shape[axis]);
      if (index < 0) return;
      memmove(to, x + (size_t)index * (size_t)step, (size_t)v[2].item);
    }
  } while (hx_walk_next(&walk));
}

const hx_kernel hx_kernel_gather_along_axis = {"gather_along_axis",   1, 0,        HX_NEEDS_ALL,
                                               HX_CHECK(check_along), 0, run_along};

/* ---- reverse ---- */

HX_CHECK_FUNCTION hx_status check_reverse(const hx_call* call) {
  hx_view v[2];
  int32_t i;
  const int32_t count = hx_attr_n(call, 0);
  if (!hx_operands(call, 1, v)) return hx_refuse(call, "need one input");
  if (v[0].dtype != v[1].dtype || !hx_same_shape(&v[0], &v[1]))
    return hx_refuse(call, "output: need the input's dtype and shape");
  if (v[0].ring || v[1].ring) return hx_refuse(call, "got a ring, need whole tensors");
  if (count < 0 || count > (int32_t)PLAN_MAX_RANK) return hx_refuse(call, "axes: need up to 8");
  for (i = 0; i < count; ++i) {
    const int32_t axis = hx_attr_n(call, 1 + (uint32_t)i);
    if (axis < -v[0].rank || axis >= v[0].rank) return hx_refuse(call, "axes: need those of the input");
  }
  return HX_OK;
}

/* Copies element by element; the index runs backwards along reversed axes. */
static void run_reverse(const hx_call* call, int cut, hx_range range) {
  hx_view v[2];
  int32_t index[PLAN_MAX_RANK], n;
  uint32_t reversed = 0, i;
  int axis;
  const int32_t count = hx_attr_n(call, 0);
  (void)cut;
  (void)range;
  hx_operands(call, 1, v);
  for (i = 0; i < (uint32_t)count; ++i) {
    const int32_t given = hx_attr_n(call, 1 + i);
    reversed ^= 1u << (given < 0 ? given + v[0].rank : given);
  }
  memset(index, 0, sizeof index);
  for (n = hx_size(&v[1]); n > 0; --n) {
    size_t from = 0, to = 0;
    for (axis = 0; axis < v[0].rank; ++axis) {
      const int32_t at = reversed >> axis & 1 ? v[0].shape[axis] - 1 - index[axis] : index[axis];
      from += (size_t)at * (size_t)v[0].strides[axis];
      to += (size_t)index[axis] * (size_t)v[1].strides[axis];
    }
    memmove(v[1].data + to, v[0].data + from, (size_t)v[1].item);
    for (axis = v[0].rank - 1; axis >= 0 && ++index[axis] == v[0].shape[axis]; --axis) index[axis] = 0;
  }
}

const hx_kernel hx_kernel_reverse = {"reverse", HX_LIST_WORDS, 0, HX_NEEDS_ALL, HX_CHECK(check_reverse),
                                     0,         run_reverse};

/* ---- reduce_argmax, reduce_argmin: the first of equal numbers; a NaN wins over all numbers ---- */

HX_CHECK_FUNCTION hx_status check_arg(const hx_call* call) {
  hx_view v[2];
  int axis, i, rank = 0;
  if (!hx_operands(call, 1, v)) return hx_refuse(call, "need one input");
  axis = hx_axis_of(call, 0, v[0].rank);
  if (axis < 0 || v[0].shape[axis] < 1) return hx_refuse(call, "axis: need one with elements");
  if (v[0].dtype != HX_FP32 && !hx_is_whole(v[0].dtype))
    return hx_fail(call->net, HX_UNSUPPORTED, "steps", call->step, call->kernel->name,
                   "dtype: need fp32 or integers other than uint64");
  if (!hx_is_index(&v[1])) return hx_refuse(call, "output: need int32 or int64");
  if (v[0].ring || v[1].ring) return hx_refuse(call, "got a ring, need whole tensors");
  for (i = 0; i < v[0].rank; ++i) {
    if (i == axis && !hx_attr_i(call, 1)) continue;
    if (rank == v[1].rank || v[1].shape[rank] != (i == axis ? 1 : v[0].shape[i]))
      return hx_refuse(call, "output: got another shape");
    ++rank;
  }
  return rank == v[1].rank ? HX_OK : hx_refuse(call, "output: got another rank");
}

static int32_t best_of(const uint8_t* x, int32_t step, int32_t n, hx_dtype dtype, int is_least) {
  int32_t i, best = 0;
  for (i = 1; i < n; ++i) {
    const uint8_t *a = x + (size_t)i * (size_t)step, *b = x + (size_t)best * (size_t)step;
    int better;
    if (dtype == HX_FP32) {
      const float p = hx_f32(a), q = hx_f32(b);
      better = q == q && (p != p || (is_least ? p < q : p > q));
    } else {
      const int64_t p = hx_whole(a, dtype), q = hx_whole(b, dtype);
      better = is_least ? p < q : p > q;
    }
    if (better) best = i;
  }
  return best;
}

static void run_arg(const hx_call* call, hx_range range, int is_least) {
  hx_view v[2];
  hx_walk walk;
  int axis, i;
  int32_t n, extent, step;
  hx_operands(call, 1, v);
  axis = hx_axis_of(call, 0, v[0].rank);
  extent = v[0].shape[axis];
  step = v[0].strides[axis];
  for (i = axis; i + 1 < v[0].rank; ++i) {
    v[0].shape[i] = v[0].shape[i + 1];
    v[0].strides[i] = v[0].strides[i + 1];
  }
  --v[0].rank;
  if (hx_attr_i(call, 1)) {
    for (i = axis; i + 1 < v[1].rank; ++i) {
      v[1].shape[i] = v[1].shape[i + 1];
      v[1].strides[i] = v[1].strides[i + 1];
    }
    --v[1].rank;
  }
  if (!hx_walk_begin(&walk, v, 2, -1, range)) return;
  do {
    const uint8_t* x = walk.at[0];
    uint8_t* to = walk.at[1];
    for (n = 0; n < walk.count; ++n, x += walk.step[0], to += walk.step[1]) {
      hx_put_u32(to, (uint32_t)best_of(x, step, extent, v[0].dtype, is_least));
      if (v[1].item == 8) hx_put_u32(to + 4, 0);
    }
  } while (hx_walk_next(&walk));
}

static void run_argmax(const hx_call* call, int axis, hx_range range) {
  (void)axis;
  run_arg(call, range, 0);
}
static void run_argmin(const hx_call* call, int axis, hx_range range) {
  (void)axis;
  run_arg(call, range, 1);
}

const hx_kernel hx_kernel_reduce_argmax = {"reduce_argmax", 2, 0, HX_NEEDS_ALL, HX_CHECK(check_arg), 0, run_argmax};
const hx_kernel hx_kernel_reduce_argmin = {"reduce_argmin", 2, 0, HX_NEEDS_ALL, HX_CHECK(check_arg), 0, run_argmin};
