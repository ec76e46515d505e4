/* Code that reductions share. */
#ifndef HEXANE_REDUCE_H_
#define HEXANE_REDUCE_H_

#include "../internal.h"

/* The first words of every reduction's attributes. */
enum { HX_REDUCE_AXES = 0, HX_REDUCE_KEEP = HX_LIST_WORDS, HX_REDUCE_WORDS };

/* Checks axes and shapes; the kernel checks the dtypes. */
hx_status hx_check_reduce(const hx_call* call);

/* Makes views of the kept axes of input and output, and of the reduced axes. Returns the number of elements of the
 * reduced axes. */
float hx_split_reduce(const hx_call* call, hx_view* kept, hx_view* reduced);

/* Checks a mean of bytes, which may come as int32 sums. The other arguments: the attribute words. */
hx_status hx_check_byte_mean(const hx_call* call, uint32_t count, uint32_t x_zero, uint32_t output_zero);
void hx_run_byte_mean(const hx_call* call, uint8_t (*mean_of)(const hx_call*, int64_t sum, hx_dtype output));

#endif
