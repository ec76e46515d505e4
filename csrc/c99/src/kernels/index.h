/* Shared code of kernels that use indices. */
#ifndef HEXANE_INDEX_H_
#define HEXANE_INDEX_H_

#include "../internal.h"

/* True if the view has a dtype for indices: int32 or int64. */
int hx_is_index(const hx_view* view);

/* Returns the axis in word `word` of the attributes; a negative axis counts from the end. Returns -1 if the rank lacks
 * the axis. */
int hx_axis_of(const hx_call* call, uint32_t word, int rank);

/* Returns an index of an axis of this extent; a negative index counts from the end. For an index outside the extent,
 * returns -1 and sets the error of the net. */
int32_t hx_index_in(const hx_call* call, const uint8_t* at, const hx_view* indices, int32_t extent);

/* Adds the byte offset of `count` coordinates in axes [first, first + count) of `view` to *offset. The coordinates
 * are the last axis of the indices, at `at`. Returns 0 and sets the error of the net if a coordinate is outside of
 * its axis. */
int hx_add_coordinates(const hx_call* call, const uint8_t* at, const hx_view* indices, const hx_view* view, int first,
                       int count, size_t* offset);

/* Makes a view of axes [first, first + count) of a view, at `data`. */
void hx_axes_of(const hx_view* view, int first, int count, uint8_t* data, hx_view* part);

#endif
