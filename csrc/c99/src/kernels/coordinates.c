/* Reads and writes elements and slices at coordinates: gather_nd, scatter_nd, scatter_along_axis and write_slice;
 * also one_hot. If an index is outside of its axis, the run ends with HX_BAD_INDEX. */
#include "index.h"

void hx_axes_of(const hx_view* view, int first, int count, uint8_t* data, hx_view* part) {
  int i;
  *part = *view;
  part->data = data;
  part->rank = count;
  for (i = 0; i < count; ++i) {
    part->shape[i] = view->shape[first + i];
    part->strides[i] = view->strides[first + i];
  }
}

int hx_add_coordinates(const hx_call* call, const uint8_t* at, const hx_view* indices, const hx_view* view, int first,
                       int count, size_t* offset) {
  int i;
  for (i = 0; i < count; ++i) {
    const int32_t index = hx_index_in(call, at + (size_t)i * (size_t)indices->strides[indices->rank - 1], indices,
                                      view->shape[first + i]);
    if (index < 0) return 0;
    *offset += (size_t)index * (size_t)view->strides[first + i];
  }
  return 1;
}

/* Advances an index of a shape, the last axis fastest. Returns 0 after the last index. */
static int next_index(int32_t* index, const int32_t* shape, int rank) {
  int axis;
  for (axis = rank - 1; axis >= 0; --axis) {
    if (++index[axis] < shape[axis]) return 1;
    index[axis] = 0;
  }
  return 0;
}

static size_t offset_of(const int32_t* index, const hx_view* view, int rank) {
  size_t offset = 0;
  int axis;
  for (axis = 0; axis < rank; ++axis) offset += (size_t)index[axis] * (size_t)view->strides[axis];
  return offset;
}

typedef enum mode { UPDATE, ADD, MUL, MAX, MIN, NO_MODE } mode;

static mode mode_of(const hx_call* call, uint32_t word) {
  return (mode)hx_index_of(hx_attr_s(call, word), "update\0add\0mul\0max\0min\0");
}

static float joined(mode m, float old, float update) {
  if (m == ADD) return old + update;
  if (m == MUL) return old * update;
  return old != old || (m == MAX ? old > update : old < update) ? old : update;
}

static int64_t joined_whole(mode m, int64_t old, int64_t update) {
  if (m == ADD) return hx_wrapped((uint64_t)old + (uint64_t)update);
  if (m == MUL) return hx_wrapped((uint64_t)old * (uint64_t)update);
  return (m == MAX ? old > update : old < update) ? old : update;
}

/* Writes one view to another of the same shape, or combines them. */
static HX_NOINLINE void put(mode m, const hx_view* from, const hx_view* to) {
  const hx_range none = {0, 0};
  hx_view v[2];
  hx_walk walk;
  int32_t i;
  v[0] = *from;
  v[1] = *to;
  if (!hx_walk_begin(&walk, v, 2, -1, none)) return;
  do {
    const uint8_t* x = walk.at[0];
    uint8_t* y = walk.at[1];
    for (i = 0; i < walk.count; ++i, x += walk.step[0], y += walk.step[1]) {
      if (m == UPDATE)
        memmove(y, x, (size_t)to->item);
      else if (to->dtype == HX_FP32)
        hx_put_f32(y, joined(m, hx_f32(y), hx_f32(x)));
      else
        hx_put_whole(y, to->item, joined_whole(m, hx_whole(y, to->dtype), hx_whole(x, to->dtype)));
    }
  } while (hx_walk_next(&walk));
}

/* ---- gather_nd: data[batch, coordinates, after], indices[batch, i, count] -> out[batch, i, after] ---- */

HX_CHECK_FUNCTION hx_status check_gather_nd(const hx_call* call) {
  hx_view v[3];
  int32_t batch, count, i;
  if (!hx_operands(call, 2, v)) return hx_refuse(call, "need data and indices");
  batch = hx_attr_n(call, 0);
  if (!hx_is_index(&v[1])) return hx_refuse(call, "indices: need int32 or int64");
  if (v[0].dtype != v[2].dtype) return hx_refuse(call, "output: need the dtype of the data");
  if (v[0].ring || v[1].ring || v[2].ring) return hx_refuse(call, "got a ring, need whole tensors");
  if (batch < 0 || batch >= v[1].rank || batch > v[0].rank) return hx_refuse(call, "batch_dims: got too many");
  count = v[1].shape[v[1].rank - 1];
  if (count > v[0].rank - batch) return hx_refuse(call, "indices: got too many coordinates");
  if (v[2].rank != v[1].rank - 1 + v[0].rank - batch - count) return hx_refuse(call, "output: got another rank");
  for (i = 0; i < v[2].rank; ++i) {
    const int is_walked = i < v[1].rank - 1;
    if (i < batch && v[0].shape[i] != v[1].shape[i]) return hx_refuse(call, "indices: need the batch of the data");
    if (v[2].shape[i] != (is_walked ? v[1].shape[i] : v[0].shape[batch + count + i - (v[1].rank - 1)]))
      return hx_refuse(call, "output: got another shape");
  }
  return HX_OK;
}

static void run_gather_nd(const hx_call* call, int cut, hx_range range) {
  hx_view v[3], from, to;
  int32_t index[PLAN_MAX_RANK] = {0};
  int batch, count, walked;
  (void)cut;
  (void)range;
  hx_operands(call, 2, v);
  if (hx_size(&v[2]) == 0) return;
  batch = hx_attr_n(call, 0);
  walked = v[1].rank - 1;
  count = v[1].shape[walked];
  do {
    size_t offset = offset_of(index, &v[0], batch);
    if (!hx_add_coordinates(call, v[1].data + offset_of(index, &v[1], walked), &v[1], &v[0], batch, count, &offset))
      return;
    hx_axes_of(&v[0], batch + count, v[0].rank - batch - count, v[0].data + offset, &from);
    hx_axes_of(&v[2], walked, v[2].rank - walked, v[2].data + offset_of(index, &v[2], walked), &to);
    put(UPDATE, &from, &to);
  } while (next_index(index, v[1].shape, walked));
}

const hx_kernel hx_kernel_gather_nd = {"gather_nd", 1, 0, HX_NEEDS_ALL, HX_CHECK(check_gather_nd), 0, run_gather_nd};

/* ---- scatters: the data, and updates at indices of it ---- */

HX_CHECK_FUNCTION hx_status check_scatter(const hx_call* call, uint32_t mode_word) {
  hx_view v[4];
  int i;
  if (!hx_operands(call, 3, v)) return hx_refuse(call, "need data, indices and updates");
  if (!hx_is_index(&v[1])) return hx_refuse(call, "indices: need int32 or int64");
  if (v[0].dtype != v[3].dtype || v[2].dtype != v[3].dtype || !hx_same_shape(&v[0], &v[3]))
    return hx_refuse(call, "output: need the dtype and shape of the data, and updates of the dtype");
  for (i = 0; i < 4; ++i)
    if (v[i].ring) return hx_refuse(call, "got a ring, need whole tensors");
  for (i = 1; i < 3; ++i)
    if (v[i].space == v[3].space && v[i].offset == v[3].offset && hx_size(&v[i]) && hx_size(&v[3]))
      return hx_refuse(call, "output: need memory of its own, or that of the data");
  if (!hx_is_string(call, mode_word) || mode_of(call, mode_word) == NO_MODE)
    return hx_refuse(call, "mode: need update, add, mul, max or min");
  if (mode_of(call, mode_word) != UPDATE && v[3].dtype != HX_FP32 && !hx_is(v[3].dtype, HX_INT32) &&
      !hx_is(v[3].dtype, HX_INT64))
    return hx_fail(call->net, HX_UNSUPPORTED, "steps", call->step, call->kernel->name,
                   "dtype: need fp32, int32 or int64 where updates are combined");
  return HX_OK;
}

HX_CHECK_FUNCTION hx_status check_scatter_nd(const hx_call* call) {
  hx_view v[4];
  int32_t count, walked, i;
  const hx_status status = check_scatter(call, 0);
  if (status != HX_OK) return status;
  hx_operands(call, 3, v);
  if (v[1].rank < 1) return hx_refuse(call, "indices: need an axis");
  walked = v[1].rank - 1;
  count = v[1].shape[walked];
  if (count > v[3].rank) return hx_refuse(call, "indices: got too many coordinates");
  if (v[2].rank != walked + v[3].rank - count) return hx_refuse(call, "updates: got another rank");
  for (i = 0; i < v[2].rank; ++i)
    if (v[2].shape[i] != (i < walked ? v[1].shape[i] : v[3].shape[count + i - walked]))
      return hx_refuse(call, "updates: got another shape");
  return HX_OK;
}

static void run_scatter_nd(const hx_call* call, int cut, hx_range range) {
  const mode m = mode_of(call, 0);
  hx_view v[4], from, to;
  int32_t index[PLAN_MAX_RANK] = {0};
  int count, walked;
  (void)cut;
  (void)range;
  hx_operands(call, 3, v);
  if (v[3].data != v[0].data) put(UPDATE, &v[0], &v[3]);
  walked = v[1].rank - 1;
  count = v[1].shape[walked];
  if (hx_size(&v[2]) == 0) return;
  do {
    size_t offset = 0;
    if (!hx_add_coordinates(call, v[1].data + offset_of(index, &v[1], walked), &v[1], &v[3], 0, count, &offset)) return;
    hx_axes_of(&v[2], walked, v[2].rank - walked, v[2].data + offset_of(index, &v[2], walked), &from);
    hx_axes_of(&v[3], count, v[3].rank - count, v[3].data + offset, &to);
    put(m, &from, &to);
  } while (next_index(index, v[1].shape, walked));
}

const hx_kernel hx_kernel_scatter_nd = {"scatter_nd",  1, 0, HX_NEEDS_ALL, HX_CHECK(check_scatter_nd), 0,
                                        run_scatter_nd};

HX_CHECK_FUNCTION hx_status check_scatter_along(const hx_call* call) {
  hx_view v[4];
  int i, axis;
  const hx_status status = check_scatter(call, 1);
  if (status != HX_OK) return status;
  hx_operands(call, 3, v);
  axis = hx_axis_of(call, 0, v[3].rank);
  if (axis < 0) return hx_refuse(call, "axis: need one of the data's");
  if (v[2].rank != v[3].rank || !hx_same_shape(&v[1], &v[2]))
    return hx_refuse(call, "updates: need the rank of the data and the shape of the indices");
  for (i = 0; i < v[3].rank; ++i)
    if (i != axis && v[2].shape[i] > v[3].shape[i]) return hx_refuse(call, "updates: need no more than the data has");
  return HX_OK;
}

static void run_scatter_along(const hx_call* call, int cut, hx_range range) {
  const mode m = mode_of(call, 1);
  hx_view v[4], from, to;
  int32_t index[PLAN_MAX_RANK] = {0};
  int axis, rank;
  (void)cut;
  (void)range;
  hx_operands(call, 3, v);
  rank = v[3].rank;
  axis = hx_axis_of(call, 0, rank);
  if (v[3].data != v[0].data) put(UPDATE, &v[0], &v[3]);
  if (hx_size(&v[2]) == 0) return;
  do {
    const int32_t own = index[axis],
                  found = hx_index_in(call, v[1].data + offset_of(index, &v[1], rank), &v[1], v[3].shape[axis]);
    if (found < 0) return;
    hx_axes_of(&v[2], 0, 0, v[2].data + offset_of(index, &v[2], rank), &from);
    index[axis] = found;
    hx_axes_of(&v[3], 0, 0, v[3].data + offset_of(index, &v[3], rank), &to);
    index[axis] = own;
    put(m, &from, &to);
  } while (next_index(index, v[2].shape, rank));
}

const hx_kernel hx_kernel_scatter_along_axis = {
    "scatter_along_axis", 2, 0, HX_NEEDS_ALL, HX_CHECK(check_scatter_along), 0, run_scatter_along};

/* ---- write_slice: an update in a state, at a position of an axis; the output is the state ---- */

HX_CHECK_FUNCTION hx_status check_write_slice(const hx_call* call) {
  hx_view v[4];
  int i, axis;
  if (!hx_operands(call, 3, v)) return hx_refuse(call, "need a state, an update and a position");
  if (v[0].space != v[3].space || v[0].offset != v[3].offset || v[0].dtype != v[3].dtype ||
      !hx_same_shape(&v[0], &v[3]) || memcmp(v[0].strides, v[3].strides, sizeof v[0].strides) != 0)
    return hx_refuse(call, "output: need the state");
  if (v[1].dtype != v[0].dtype || v[1].rank != v[0].rank) return hx_refuse(call, "update: need the state's dtype");
  if (!hx_is_index(&v[2]) || v[2].rank > 1 || hx_size(&v[2]) != 1)
    return hx_refuse(call, "position: need one of int32 or int64");
  if (v[0].ring || v[1].ring) return hx_refuse(call, "got a ring, need whole tensors");
  axis = hx_axis_of(call, 0, v[0].rank);
  if (axis < 0) return hx_refuse(call, "axis: need one of the state's");
  for (i = 0; i < v[0].rank; ++i)
    if (i == axis ? v[1].shape[i] > v[0].shape[i] : v[1].shape[i] != v[0].shape[i])
      return hx_refuse(call, "update: need the state's extents, or fewer along the axis");
  return HX_OK;
}

static void run_write_slice(const hx_call* call, int cut, hx_range range) {
  hx_view v[4];
  int64_t at;
  int axis;
  (void)cut;
  (void)range;
  hx_operands(call, 3, v);
  axis = hx_axis_of(call, 0, v[0].rank);
  at = hx_whole(v[2].data, v[2].dtype);
  if (at < 0 || at > v[0].shape[axis] - v[1].shape[axis]) {
    call->net->failed = hx_fail(call->net, HX_BAD_INDEX, "steps", call->step, "write_slice",
                                "position: need one where the update fits");
    return;
  }
  v[0].data += (size_t)at * (size_t)v[0].strides[axis];
  v[0].shape[axis] = v[1].shape[axis];
  put(UPDATE, &v[1], &v[0]);
}

const hx_kernel hx_kernel_write_slice = {"write_slice",  1, 0, HX_NEEDS_ALL, HX_CHECK(check_write_slice), 0,
                                         run_write_slice};

/* ---- one_hot: an index outside of the depth sets nothing ---- */

enum { AXIS, DEPTH, ON, OFF, ONE_HOT_WORDS };

HX_CHECK_FUNCTION hx_status check_one_hot(const hx_call* call) {
  hx_view v[2];
  uint8_t element[8];
  uint32_t word;
  int i, axis;
  if (!hx_operands(call, 1, v)) return hx_refuse(call, "need indices");
  if (!hx_is_index(&v[0])) return hx_refuse(call, "indices: need int32 or int64");
  if (v[1].rank != v[0].rank + 1) return hx_refuse(call, "output: need one axis more than the indices");
  if (v[0].ring || v[1].ring) return hx_refuse(call, "got a ring, need whole tensors");
  axis = hx_axis_of(call, AXIS, v[1].rank);
  if (axis < 0) return hx_refuse(call, "axis: need one of the output's");
  for (i = 0; i < v[1].rank; ++i)
    if (v[1].shape[i] != (i == axis ? hx_attr_n(call, DEPTH) : v[0].shape[i - (i > axis)]))
      return hx_refuse(call, "output: got another shape");
  if (v[1].dtype != HX_FP32 && !hx_is_whole(v[1].dtype))
    return hx_fail(call->net, HX_UNSUPPORTED, "steps", call->step, "one_hot",
                   "dtype: need fp32 or integers other than uint64");
  for (word = ON; word <= OFF; ++word)
    if (!hx_attr_element(call, word, v[1].dtype, element)) return hx_refuse(call, "value: need one of the dtype");
  return HX_OK;
}

static void run_one_hot(const hx_call* call, int cut, hx_range range) {
  hx_view v[2];
  int32_t index[PLAN_MAX_RANK] = {0};
  uint8_t on[8], off[8];
  int axis, i;
  (void)cut;
  (void)range;
  hx_operands(call, 1, v);
  if (hx_size(&v[1]) == 0) return;
  hx_attr_element(call, ON, v[1].dtype, on);
  hx_attr_element(call, OFF, v[1].dtype, off);
  axis = hx_axis_of(call, AXIS, v[1].rank);
  do {
    size_t from = 0;
    int64_t given;
    for (i = 0; i < v[1].rank; ++i)
      if (i != axis) from += (size_t)index[i] * (size_t)v[0].strides[i - (i > axis)];
    given = hx_whole(v[0].data + from, v[0].dtype);
    if (given < 0) given += v[1].shape[axis];
    memcpy(v[1].data + offset_of(index, &v[1], v[1].rank), given == index[axis] ? on : off, (size_t)v[1].item);
  } while (next_index(index, v[1].shape, v[1].rank));
}

const hx_kernel hx_kernel_one_hot = {"one_hot", ONE_HOT_WORDS, 0, HX_NEEDS_ALL, HX_CHECK(check_one_hot),
                                     0,         run_one_hot};
