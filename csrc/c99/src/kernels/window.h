/* The geometry of a convolution or pool over channels-last images, [N, H, C] or [N, H, W, C]. */
#ifndef HEXANE_WINDOW_H_
#define HEXANE_WINDOW_H_

#include "../internal.h"

/* One spatial axis. An image of rank 3 has its spatial axis in h, and w = 1. */
typedef struct hx_axis {
  int32_t in, out, kernel, stride, dilation, before, after;
  int32_t in_step, out_step; /* bytes */
} hx_axis;

/* The axis `w` of images of rank 3, which has one pixel. */
extern const hx_axis hx_one;

/* Attributes from `word` on: strides, dilations, pads, each a list. hx_check_window() checks them and also sets
 * *axis. */
hx_status hx_check_window(const hx_call* call, uint32_t word, int i, const hx_view* x, const hx_view* out,
                          int32_t kernel, hx_axis* axis);
void hx_read_axis(const hx_call* call, uint32_t word, int i, const hx_view* x, const hx_view* out, int32_t kernel,
                  hx_axis* axis);

/* Returns the taps [begin, end) of the window of output `o` that lie in the input. */
hx_range hx_taps(const hx_axis* axis, int32_t o);

/* Returns the input rows that output rows need. */
hx_range hx_reached(const hx_axis* axis, hx_range out);

/* True if the view has a rank from least_rank to most_rank, and dense channels. */
int hx_is_image(const hx_view* view, int least_rank, int most_rank);

/* The address of an image and its strides in bytes. */
typedef struct hx_image {
  uint8_t* data;
  int32_t image, row, pixel, ring, item;
} hx_image;

void hx_image_of(const hx_view* view, hx_image* image);

/* Returns the byte offset of row `y`. */
static inline size_t hx_row_at(const hx_image* image, int32_t y) {
  return (size_t)(image->ring ? y % image->ring : y) * (size_t)image->row;
}

static inline hx_range hx_part(int axis, hx_range range, int own, int32_t extent) {
  hx_range all;
  all.begin = 0;
  all.end = extent;
  return own == axis ? range : all;
}

/* ---- convolutions: strides, dilations, pads, groups ---- */

typedef struct hx_conv {
  hx_image x, out;
  const uint8_t* w;
  hx_axis h, wide;
  int32_t batch, groups, group_in, group_out;
  int32_t w_out, w_in, w_row, w_column; /* strides of the weight */
  int channel_axis;
} hx_conv;

#define HX_CONV_WORDS (3u * HX_LIST_WORDS + 1u)

hx_status hx_check_conv(const hx_call* call);
void hx_read_conv(const hx_call* call, hx_conv* conv);
hx_range hx_conv_rows(const hx_call* call, hx_range rows);

/* The operands that slots of an epilogue add to the output. hx_extras_at() sets at[i] to the number that slot i adds to
 * the output's element (n, y, x, c). */
typedef struct hx_extras {
  hx_image images[4];
  int any;
} hx_extras;

void hx_read_extras(const hx_call* call, const hx_epilogue* epilogue, hx_extras* extras);
void hx_extras_at(const hx_epilogue* epilogue, const hx_extras* extras, int32_t n, int32_t y, int32_t x, int32_t c,
                  const uint8_t** at);

#endif
