/* quantized_conv, q31_conv: [N, H, W, C] of 8-bit integers -> [N, OH, OW, O], summed in int32 and scaled, by
 * TFLite's arithmetic in q31_conv. Padding has the value of x's zero point, a real 0. */
#include "quantized.h"

/* The data that all pixels share for one block of channels. */
typedef struct block {
  const hx_conv* c;
  const hx_quantized* q;
  const hx_extras* extras;
  hx_columns columns;
  int32_t n;
} block;

static uint8_t* out_at(const hx_conv* c, const block* b, int32_t oy, int32_t ox) {
  return c->out.data + (size_t)b->n * (size_t)c->out.image + hx_row_at(&c->out, oy) +
         (size_t)ox * (size_t)c->wide.out_step + (size_t)b->columns.first * (size_t)c->out.item;
}

static void store(const block* b, const uint32_t* sums, int32_t oy, int32_t ox) {
  const uint8_t* extra[4] = {0, 0, 0, 0};
  if (!HX_ONLY_CLAMPS && b->extras->any)
    hx_extras_at(&b->q->requant.epilogue, b->extras, b->n, oy, ox, b->columns.first, extra);
  b->q->store(b->q, &b->columns, sums, HX_ONLY_CLAMPS ? 0 : extra, out_at(b->c, b, oy, ox));
}

/* Gathers terms [k, k + n) of a pixel's window, in the order of rows, taps and channels. Terms outside of the image
 * are 0. */
static void gather(const hx_conv* c, const hx_quantized* q, const uint8_t* image, int32_t oy, int32_t ox, int32_t k,
                   int32_t n, int16_t* to) {
  const int32_t tap = k / c->group_in;
  const int joined = c->wide.dilation == 1 && c->wide.in_step == c->group_in;
  int32_t kh = tap / c->wide.kernel, kw = tap % c->wide.kernel, channel = k % c->group_in, at = 0;
  while (at < n) {
    const int32_t y = oy * c->h.stride - c->h.before + kh * c->h.dilation;
    const int32_t x = ox * c->wide.stride - c->wide.before + kw * c->wide.dilation;
    const int inside = y >= 0 && y < c->h.in && x >= 0 && x < c->wide.in;
    const int32_t taps = inside && joined ? hx_min(c->wide.kernel - kw, c->wide.in - x) : 1;
    const int32_t count = hx_min(taps * c->group_in - channel, n - at);
    if (inside)
      hx_widen(q, image + hx_row_at(&c->x, y) + (size_t)x * (size_t)c->wide.in_step + channel, count, to, at);
    else
      hx_widen_zeros(count, to, at);
    at += count;
    channel = 0;
    kw += taps;
    if (kw == c->wide.kernel) {
      kw = 0;
      ++kh;
    }
  }
}

/* Computes one or two adjacent pixels. */
static HX_NOINLINE void run_pixels(const block* b, const uint8_t* image, const uint8_t* weight, int packed, int32_t oy,
                                   int32_t ox, int pixels) {
  const hx_conv* c = b->c;
  const int32_t terms = packed ? c->h.kernel * c->wide.kernel * c->group_in : c->group_in;
  int32_t taps = packed ? 1 : c->h.kernel * c->wide.kernel, tap, k, p;
  int16_t x[2 * HX_CHUNK];
  uint32_t sums[2 * HX_BLOCK];
  for (p = 0; p < pixels; ++p) memcpy(sums + p * HX_BLOCK, b->columns.start, sizeof b->columns.start);
  for (tap = 0; tap < taps; ++tap) {
    const uint8_t* from = weight + tap / c->wide.kernel * c->w_row + tap % c->wide.kernel * c->w_column;
    for (k = 0; k < terms; k += HX_CHUNK) {
      const int32_t n = hx_min(HX_CHUNK, terms - k);
      for (p = 0; p < pixels; ++p) gather(c, b->q, image, oy, ox + p, tap * c->group_in + k, n, x + p * HX_CHUNK);
      hx_add_products(b->q, &b->columns, x, pixels, n, from + k * c->w_in, c->w_out, c->w_in, sums);
    }
  }
  for (p = 0; p < pixels; ++p) store(b, sums + p * HX_BLOCK, oy, ox + p);
}

/* Computes a pixel of a depthwise convolution. Weights are signed bytes, and the weights of a tap are adjacent. */
static HX_NOINLINE void run_depthwise(const block* b, const uint8_t* image, const uint8_t* weight, int32_t oy,
                                      int32_t ox) {
  const hx_conv* c = b->c;
  const hx_range rows = hx_taps(&c->h, oy), taps = hx_taps(&c->wide, ox);
  const int32_t left = ox * c->wide.stride - c->wide.before, top = oy * c->h.stride - c->h.before;
  const int32_t zero = b->q->x_zero, num = b->columns.num;
  const uint8_t flip = hx_flip(b->q->x_flip);
  uint32_t sums[HX_BLOCK];
  int32_t kh, kw, i, k;
  memcpy(sums, b->columns.start, sizeof sums);
  for (kh = rows.begin; kh < rows.end; ++kh)
    for (kw = taps.begin; kw < taps.end; ++kw) {
      const uint8_t* x =
          image + hx_row_at(&c->x, top + kh * c->h.dilation) + (left + kw * c->wide.dilation) * c->wide.in_step;
      const int8_t* w = (const int8_t*)weight + kh * c->w_row + kw * c->w_column;
      for (i = 0; i + 8 <= num; i += 8)
        for (k = i; k < i + 8; ++k) sums[k] += (uint32_t)(((int8_t)(x[k] ^ flip) - zero) * w[k]);
      for (; i < num; ++i) sums[i] += (uint32_t)(((int8_t)(x[i] ^ flip) - zero) * w[i]);
    }
  store(b, sums, oy, ox);
}

HX_NOINLINE void hx_run_quantized(hx_conv* c, const hx_quantized* q, const hx_extras* extras, int axis,
                                  hx_range range) {
  const hx_range images = hx_part(axis, range, 0, c->batch), rows = hx_part(axis, range, 1, c->h.out),
                 channels = hx_part(axis, range, c->channel_axis, c->groups * c->group_out);
  const int depthwise =
      c->group_in == 1 && c->group_out == 1 && c->w_out == 1 && !hx_flip(q->y_flip) && !q->y_zero.data;
  block b;
  int32_t o, oy, ox;
  int packed;
  if (c->group_in == 1) c->w_in = 1; /* the stride of an axis of extent 1 is 0 */
  packed = c->w_in == 1 && (c->wide.kernel == 1 || c->w_column == c->group_in) &&
           (c->h.kernel == 1 || c->w_row == c->group_in * c->wide.kernel);
  b.c = c;
  b.q = q;
  b.extras = extras;
  for (b.n = images.begin; b.n < images.end; ++b.n)
    for (o = channels.begin; o < channels.end; o += b.columns.num) {
      const int32_t group = o / c->group_out;
      const uint8_t* image = c->x.data + (size_t)b.n * (size_t)c->x.image + (size_t)group * (size_t)c->group_in;
      const uint8_t* weight = c->w + (size_t)o * (size_t)c->w_out;
      b.columns.first = o;
      b.columns.num =
          hx_min(HX_BLOCK, (depthwise ? channels.end : hx_min(channels.end, (group + 1) * c->group_out)) - o);
      q->read(q, &b.columns);
      for (oy = rows.begin; oy < rows.end; ++oy)
        if (depthwise)
          for (ox = 0; ox < c->wide.out; ++ox) run_depthwise(&b, image, weight, oy, ox);
        else
          for (ox = 0; ox < c->wide.out; ox += 2)
            run_pixels(&b, image, weight, packed, oy, ox, hx_min(2, c->wide.out - ox));
    }
}

static void run_conv(const hx_call* call, int axis, hx_range range, const hx_quantized* q) {
  hx_conv c;
  hx_extras extras;
  hx_read_conv(call, &c);
  if (!HX_ONLY_CLAMPS) hx_read_extras(call, &q->requant.epilogue, &extras);
  hx_run_quantized(&c, q, &extras, axis, range);
}

static void run(const hx_call* call, int axis, hx_range range) {
  hx_quantized q;
  hx_read_quantized(call, HX_CONV_WORDS, &q);
  run_conv(call, axis, range, &q);
}

static void run_q31(const hx_call* call, int axis, hx_range range) {
  hx_quantized q;
  hx_read_q31(call, HX_CONV_WORDS, &q);
  run_conv(call, axis, range, &q);
}

HX_CHECK_FUNCTION int32_t channels_of(const hx_call* call) {
  hx_view w;
  hx_input(call, 1, &w);
  return w.shape[0];
}

HX_CHECK_FUNCTION hx_status check(const hx_call* call) {
  const hx_status status = hx_check_conv(call);
  return status == HX_OK ? hx_check_quantized(call, HX_CONV_WORDS, channels_of(call)) : status;
}

HX_CHECK_FUNCTION hx_status check_q31(const hx_call* call) {
  const hx_status status = hx_check_conv(call);
  return status == HX_OK ? hx_check_q31(call, HX_CONV_WORDS, channels_of(call)) : status;
}

const hx_kernel hx_kernel_quantized_conv = {
    "quantized_conv", HX_CONV_WORDS + HX_QUANTIZED_WORDS, 0xf & ~4u, HX_NEEDS_ROWS, HX_CHECK(check), hx_conv_rows, run};
const hx_kernel hx_kernel_q31_conv = {
    "q31_conv", HX_CONV_WORDS + HX_Q31_WORDS, 0xf & ~4u, HX_NEEDS_ROWS, HX_CHECK(check_q31), hx_conv_rows, run_q31};
