/* The shared code of kernels that index. */
#ifndef HEXANE_INDEX_H_
#define HEXANE_INDEX_H_

#include "../internal.h"

/* True if it has a dtype of indices. */
int hx_is_index(const hx_view* view);

/* The axis of an attribute, counted from the end where it is negative; -1 where the rank has none. */
int hx_axis_of(const hx_call* call, uint32_t word, int rank);

/* An index of an axis of this extent, from its end where it is negative; -1, and the error of the net, for others. */
int32_t hx_index_in(const hx_call* call, const uint8_t* at, const hx_view* indices, int32_t extent);

/* Adds to an offset what `count` coordinates, the last axis of the indices at `at`, are in axes [first, first + count)
 * of `view`; 0, and the error of the net, if one lies outside. */
int hx_add_coordinates(const hx_call* call, const uint8_t* at, const hx_view* indices, const hx_view* view, int first,
                       int count, size_t* offset);

/* Axes [first, first + count) of a view, at some data. */
void hx_axes_of(const hx_view* view, int first, int count, uint8_t* data, hx_view* part);

#endif
