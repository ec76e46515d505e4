/* quantized_conv: [N, H, W, C] of 8-bit integers -> [N, OH, OW, O], summed in int32 and scaled. Padding is real 0. */
#include "quantized.h"
#include "window.h"

HX_CHECK_FUNCTION hx_status check(const hx_call* call) {
  hx_view w;
  const hx_status status = hx_check_conv(call);
  if (status != HX_OK) return status;
  hx_input(call, 1, &w);
  return hx_check_quantized(call, HX_CONV_WORDS, w.shape[0]);
}

#define MOST_CHANNELS 16 /* of a block where a tap is one byte of x */

/* Adds the taps that lie in the image to the sums of `num` channels from one weight on. */
static void add_taps(const hx_conv* c, const hx_quantized* q, const hx_column* columns, int num, const uint8_t* image,
                     const uint8_t* weight, int32_t oy, hx_range rows, int32_t ox, uint32_t* sums) {
  const hx_range taps = hx_taps(&c->wide, ox);
  const int32_t left = ox * c->wide.stride - c->wide.before, top = oy * c->h.stride - c->h.before;
  const int joined = c->w_column == c->group_in && c->w_in == 1 && c->wide.dilation == 1 && c->groups == 1 &&
                     c->wide.in_step == c->group_in;
  int32_t kh, kw;
  if (taps.begin == taps.end) return;
  for (kh = rows.begin; kh < rows.end; ++kh) {
    const uint8_t* row = image + hx_row_at(&c->x, top + kh * c->h.dilation);
    const uint8_t* from = weight + kh * c->w_row;
    if (joined) {
      hx_quantized_dots(q, columns, num, row + (left + taps.begin) * c->wide.in_step, 1,
                        from + taps.begin * c->w_column, c->w_out, 1, (taps.end - taps.begin) * c->group_in, sums);
      continue;
    }
    for (kw = taps.begin; kw < taps.end; ++kw)
      hx_quantized_dots(q, columns, num, row + (left + kw * c->wide.dilation) * c->wide.in_step, 1,
                        from + kw * c->w_column, c->w_out, c->w_in, c->group_in, sums);
  }
}

/* The same where a tap is one byte of x: every channel has its own, or all have one. */
static void add_single(const hx_conv* c, const hx_quantized* q, const hx_column* columns, int num, const uint8_t* image,
                       const uint8_t* weight, int32_t oy, hx_range rows, int32_t ox, uint32_t* sums) {
  const hx_range taps = hx_taps(&c->wide, ox);
  const int32_t left = ox * c->wide.stride - c->wide.before, top = oy * c->h.stride - c->h.before;
  const int32_t zero = q->x_flip ? q->x_zero - 128 : q->x_zero;
  const int own = c->group_out == 1;
  const int plain = num == MOST_CHANNELS && c->w_out == 1 && !q->x_flip && !q->y_flip && !q->y_zero.data;
  int32_t kh, kw;
  int i;
  for (kh = rows.begin; kh < rows.end; ++kh)
    for (kw = taps.begin; kw < taps.end; ++kw) {
      const uint8_t* x =
          image + hx_row_at(&c->x, top + kh * c->h.dilation) + (left + kw * c->wide.dilation) * c->wide.in_step;
      const uint8_t* w = weight + kh * c->w_row + kw * c->w_column;
      if (plain) {
        const int8_t *a = (const int8_t*)x, *b = (const int8_t*)w;
        if (own)
          for (i = 0; i < MOST_CHANNELS; ++i) sums[i] += (uint32_t)((a[i] - zero) * b[i]);
        else
          for (i = 0; i < MOST_CHANNELS; ++i) sums[i] += (uint32_t)((a[0] - zero) * b[i]);
        continue;
      }
      for (i = 0; i < num; ++i, w += c->w_out) {
        const uint8_t a = x[own ? i : 0] ^ q->x_flip, b = *w ^ q->y_flip;
        sums[i] += (uint32_t)((hx_i8(&a) - zero) * (hx_i8(&b) - (columns[i].y_zero - q->y_flip)));
      }
    }
}

/* Output channels [o, o + num) of one group, or of a depthwise convolution. */
static HX_NOINLINE void run_channels(const hx_conv* c, const hx_quantized* q, const hx_extras* extras, int32_t n,
                                     int32_t o, int num, hx_range rows) {
  const uint8_t* image = c->x.data + (size_t)n * (size_t)c->x.image + (size_t)(o / c->group_out) * (size_t)c->group_in;
  const uint8_t* weight = c->w + (size_t)o * (size_t)c->w_out;
  const uint8_t* extra[4] = {0, 0, 0, 0};
  hx_column columns[MOST_CHANNELS];
  uint32_t sums[MOST_CHANNELS];
  int32_t oy, ox;
  int i;
  for (i = 0; i < num; ++i) hx_read_column(q, o + i, &columns[i]);
  for (oy = rows.begin; oy < rows.end; ++oy) {
    const hx_range taps = hx_taps(&c->h, oy);
    uint8_t* to =
        c->out.data + (size_t)n * (size_t)c->out.image + hx_row_at(&c->out, oy) + (size_t)o * (size_t)c->out.item;
    for (ox = 0; ox < c->wide.out; ++ox, to += c->wide.out_step) {
      for (i = 0; i < num; ++i) sums[i] = columns[i].start;
      if (c->group_in == 1)
        add_single(c, q, columns, num, image, weight, oy, taps, ox, sums);
      else
        add_taps(c, q, columns, num, image, weight, oy, taps, ox, sums);
      for (i = 0; i < num; ++i) {
        if (extras->any) hx_extras_at(&q->requant.epilogue, extras, n, oy, ox, o + i, extra);
        hx_store_sum(&q->requant, &columns[i], sums[i], extra, to + i * c->out.item);
      }
    }
  }
}

static void run(const hx_call* call, int axis, hx_range range) {
  hx_conv c;
  hx_quantized q;
  hx_extras extras;
  hx_range images, rows, channels;
  int32_t n, o, num, most;
  hx_read_conv(call, &c);
  hx_read_quantized(call, HX_CONV_WORDS, &q);
  hx_read_extras(call, &q.requant.epilogue, &extras);
  images = hx_part(axis, range, 0, c.batch);
  rows = hx_part(axis, range, 1, c.h.out);
  channels = hx_part(axis, range, c.channel_axis, c.groups * c.group_out);
  /* Blocks of channels, which never mix those of two groups unless each group is one. */
  most = c.groups > 1 && c.group_out > 1 ? 1 : c.group_in == 1 ? MOST_CHANNELS : c.groups == 1 ? HX_BLOCK : 1;
  for (n = images.begin; n < images.end; ++n)
    for (o = channels.begin; o < channels.end; o += num) {
      num = hx_min(most, channels.end - o);
      run_channels(&c, &q, &extras, n, o, num, rows);
    }
}

const hx_kernel hx_kernel_quantized_conv = {
    "quantized_conv", HX_CONV_WORDS + HX_QUANTIZED_WORDS, 0xf & ~4u, HX_NEEDS_ROWS, HX_CHECK(check), hx_conv_rows, run};
