/* Walks over the elements of several views at once. */
#include "internal.h"

int hx_same_shape(const hx_view* a, const hx_view* b) {
  int axis;
  if (a->rank != b->rank) return 0;
  for (axis = 0; axis < a->rank; ++axis)
    if (a->shape[axis] != b->shape[axis]) return 0;
  return 1;
}

int hx_broadcasts(const hx_view* view, const hx_view* out) {
  int axis;
  const int lead = out->rank - view->rank;
  if (lead < 0) return 0;
  for (axis = 0; axis < view->rank; ++axis)
    if (view->shape[axis] != 1 && view->shape[axis] != out->shape[lead + axis]) return 0;
  return 1;
}

int hx_is_dense_inside(const hx_view* view) {
  return view->rank == 0 || view->shape[view->rank - 1] <= 1 || view->strides[view->rank - 1] == view->item;
}

/* Begins a walk. Neighbouring axes that are contiguous in every view are merged. */
int hx_walk_begin(hx_walk* walk, const hx_view* views, int num, int axis, hx_range range) {
  const hx_view* out = &views[num - 1];
  int i, k;
  walk->num = num;
  walk->rank = 0;
  for (k = 0; k < num; ++k) walk->at[k] = views[k].data;
  for (i = 0; i < out->rank; ++i) {
    const int32_t begin = i == axis ? range.begin : 0;
    const int32_t extent = i == axis ? range.end - range.begin : out->shape[i];
    int merges = walk->rank > 0;
    if (extent <= 0) return 0;
    for (k = 0; k < num; ++k) {
      const int own = i - (out->rank - views[k].rank);
      const int repeats = own < 0 || (views[k].shape[own] == 1 && out->shape[i] != 1);
      const int32_t stride = repeats ? 0 : views[k].strides[own];
      int32_t* strides = walk->strides[k] + walk->rank;
      if (begin && !repeats)
        walk->at[k] += (size_t)(own == 1 && views[k].ring ? begin % views[k].ring : begin) * (size_t)stride;
      /* the product is below 2^32: it is the offset after the last element, whose offset is below 2^31 */
      merges = merges && (uint32_t)strides[-1] == (uint32_t)stride * (uint32_t)extent;
      strides[0] = stride;
    }
    if (extent == 1) continue;
    if (!merges) walk->shape[walk->rank++] = 1;
    walk->shape[walk->rank - 1] *= extent;
    for (k = 0; k < num && merges; ++k) walk->strides[k][walk->rank - 1] = walk->strides[k][walk->rank];
  }
  if (walk->rank == 0) {
    walk->shape[walk->rank++] = 1;
    for (k = 0; k < num; ++k) walk->strides[k][0] = 0;
  }
  memset(walk->index, 0, sizeof walk->index);
  walk->count = walk->shape[walk->rank - 1];
  for (k = 0; k < num; ++k) walk->step[k] = walk->strides[k][walk->rank - 1];
  return 1;
}

int hx_walk_next(hx_walk* walk) {
  int axis, k;
  for (axis = walk->rank - 2; axis >= 0; --axis) {
    for (k = 0; k < walk->num; ++k) walk->at[k] += walk->strides[k][axis];
    if (++walk->index[axis] < walk->shape[axis]) return 1;
    for (k = 0; k < walk->num; ++k) walk->at[k] -= (size_t)walk->shape[axis] * (size_t)walk->strides[k][axis];
    walk->index[axis] = 0;
  }
  return 0;
}
