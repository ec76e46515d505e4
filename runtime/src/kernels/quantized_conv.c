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

/* The sum of one output element: the taps that lie in the image. */
static uint32_t sum_at(const hx_conv* c, const hx_quantized* q, const hx_column* column, const uint8_t* image,
                       const uint8_t* weight, int32_t oy, hx_range rows, int32_t ox, hx_range columns) {
  const int32_t left = ox * c->wide.stride - c->wide.before, top = oy * c->h.stride - c->h.before;
  const int joined = c->w_column == c->group_in && c->w_in == 1 && c->wide.dilation == 1 &&
                     c->wide.in_step == c->group_in && c->groups == 1;
  uint32_t sum = column->start;
  int32_t kh, kw;
  for (kh = rows.begin; kh < rows.end; ++kh) {
    const uint8_t* row = image + hx_row_at(&c->x, top + kh * c->h.dilation);
    const uint8_t* taps = weight + kh * c->w_row;
    if (c->group_in == 1 && columns.begin < columns.end) { /* a tap is one byte: a row of them at once */
      sum += hx_quantized_dot(q, column->y_zero, row + (left + columns.begin * c->wide.dilation) * c->wide.in_step,
                              c->wide.dilation * c->wide.in_step, taps + columns.begin * c->w_column, c->w_column,
                              columns.end - columns.begin);
      continue;
    }
    if (joined && columns.begin < columns.end) {
      sum += hx_quantized_dot(q, column->y_zero, row + (left + columns.begin) * c->wide.in_step, 1,
                              taps + columns.begin * c->w_column, 1, (columns.end - columns.begin) * c->group_in);
      continue;
    }
    for (kw = columns.begin; kw < columns.end; ++kw)
      sum += hx_quantized_dot(q, column->y_zero, row + (left + kw * c->wide.dilation) * c->wide.in_step, 1,
                              taps + kw * c->w_column, c->w_in, c->group_in);
  }
  return sum;
}

static void run_channel(const hx_conv* c, const hx_quantized* q, const hx_extras* extras, int32_t n, int32_t o,
                        hx_range rows) {
  const uint8_t* image = c->x.data + (size_t)n * (size_t)c->x.image + (size_t)(o / c->group_out) * (size_t)c->group_in;
  const uint8_t* weight = c->w + (size_t)o * (size_t)c->w_out;
  uint8_t* out = c->out.data + (size_t)n * (size_t)c->out.image + (size_t)o * (size_t)c->out.item;
  const uint8_t* extra[4] = {0, 0, 0, 0};
  hx_column column;
  int32_t oy, ox;
  hx_read_column(q, o, &column);
  for (oy = rows.begin; oy < rows.end; ++oy) {
    const hx_range taps = hx_taps(&c->h, oy);
    uint8_t* to = out + hx_row_at(&c->out, oy);
    for (ox = 0; ox < c->wide.out; ++ox, to += c->wide.out_step) {
      const uint32_t sum = sum_at(c, q, &column, image, weight, oy, taps, ox, hx_taps(&c->wide, ox));
      if (extras->any) hx_extras_at(&q->requant.epilogue, extras, n, oy, ox, o, extra);
      hx_store_sum(&q->requant, &column, sum, extra, to);
    }
  }
}

static void run(const hx_call* call, int axis, hx_range range) {
  hx_conv c;
  hx_quantized q;
  hx_extras extras;
  hx_range images, rows, channels;
  int32_t n, o;
  hx_read_conv(call, &c);
  hx_read_quantized(call, HX_CONV_WORDS, &q);
  hx_read_extras(call, &q.requant.epilogue, &extras);
  images = hx_part(axis, range, 0, c.batch);
  rows = hx_part(axis, range, 1, c.h.out);
  channels = hx_part(axis, range, c.channel_axis, c.groups * c.group_out);
  for (n = images.begin; n < images.end; ++n)
    for (o = channels.begin; o < channels.end; ++o) run_channel(&c, &q, &extras, n, o, rows);
}

const hx_kernel hx_kernel_quantized_conv = {
    "quantized_conv", HX_CONV_WORDS + HX_QUANTIZED_WORDS, 0xf & ~4u, HX_NEEDS_ROWS, HX_CHECK(check), hx_conv_rows, run};
