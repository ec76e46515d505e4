/* What reductions share. */
#ifndef HEXANE_REDUCE_H_
#define HEXANE_REDUCE_H_

#include "../internal.h"

/* Words of attributes that every reduction begins with. */
enum { HX_REDUCE_AXES = 0, HX_REDUCE_KEEP = HX_LIST_WORDS, HX_REDUCE_WORDS };

/* That axes and shapes fit; the dtypes are left to the kernel. */
hx_status hx_check_reduce(const hx_call* call);

/* The axes that are kept, of input and output, and those that are reduced; returns how many elements these have. */
float hx_split_reduce(const hx_call* call, hx_view* kept, hx_view* reduced);

/* Means of bytes, or of int32 sums of `count` of them. */
hx_status hx_check_byte_mean(const hx_call* call, uint32_t count, uint32_t x_zero, uint32_t output_zero);
void hx_run_byte_mean(const hx_call* call, uint8_t (*mean_of)(const hx_call*, int64_t sum, hx_dtype output));

#endif
