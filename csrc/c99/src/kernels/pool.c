/* max_pool and avg_pool of channels-last images with one or two spatial axes. */
#include "window.h"

/* kernel_sizes, strides, dilations, pads, ceil_mode; exclude_padding */
enum { KERNELS = 0, WINDOW = HX_LIST_WORDS, CEIL = 4 * HX_LIST_WORDS, EXCLUDE };

static int32_t kernel_size(const hx_call* call, int i) { return (int32_t)hx_attr_i(call, KERNELS + 1 + (uint32_t)i); }

enum { MAX, AVERAGE, ROUNDED }; /* ROUNDED: q31_avg_pool */

#define MOST_TAPS (1 << 22) /* taps whose sum fits in int32 */

HX_CHECK_FUNCTION hx_status check(const hx_call* call, int kind) {
  hx_view x, out;
  int64_t taps = 1;
  int i;
  if (call->num_inputs != 1 || !hx_input(call, 0, &x)) return hx_refuse(call, "need one input");
  hx_output(call, 0, &out);
  if (!hx_is_image(&x, 3, 4) || !hx_is_image(&out, 3, 4) || out.rank != x.rank)
    return hx_refuse(call, "need images of rank 3 or 4 with dense channels");
  if (x.dtype != out.dtype ||
      !((kind != ROUNDED && x.dtype == HX_FP32) || (kind != AVERAGE && (x.dtype == HX_INT8 || x.dtype == HX_UINT8))))
    return hx_refuse(call, "dtype: this pool does not take it");
  if (out.shape[0] != x.shape[0] || out.shape[x.rank - 1] != x.shape[x.rank - 1])
    return hx_refuse(call, "output: need the input's batch and channels");
  if (hx_attr_i(call, KERNELS) != x.rank - 2) return hx_refuse(call, "kernel_sizes: need one for each spatial axis");
  for (i = 0; i < x.rank - 2; ++i) {
    const int64_t kernel = hx_attr_i(call, KERNELS + 1 + (uint32_t)i);
    hx_axis a;
    hx_status status;
    int64_t room;
    if (kernel < 1 || kernel > INT_MAX) return hx_refuse(call, "kernel_sizes: need 1 or more");
    status = hx_check_window(call, WINDOW, i, &x, &out, (int32_t)kernel, &a);
    if (status != HX_OK) return status;
    room = (int64_t)a.in + a.before + a.after - (int64_t)(a.kernel - 1) * a.dilation - 1;
    if (a.in < 1 || a.out < (room < 0 ? 0 : room / a.stride + 1) ||
        a.out > (room < 0 ? 0 : (room + (hx_attr_i(call, CEIL) ? a.stride - 1 : 0)) / a.stride + 1))
      return hx_refuse(call, "output: got another spatial extent");
    taps *= hx_min(a.kernel, a.in);
    if (kind == ROUNDED && taps > MOST_TAPS) return hx_refuse(call, "window: got too many elements");
  }
  return HX_OK;
}

HX_CHECK_FUNCTION hx_status check_max(const hx_call* call) { return check(call, MAX); }
HX_CHECK_FUNCTION hx_status check_avg(const hx_call* call) { return check(call, AVERAGE); }
HX_CHECK_FUNCTION hx_status check_rounded(const hx_call* call) { return check(call, ROUNDED); }

static hx_range rows(const hx_call* call, hx_range out_rows) {
  hx_view x, out;
  hx_axis axis;
  hx_input(call, 0, &x);
  hx_output(call, 0, &out);
  hx_read_axis(call, WINDOW, 0, &x, &out, kernel_size(call, 0), &axis);
  return hx_reached(&axis, out_rows);
}

typedef struct pool {
  hx_image x, out;
  hx_axis h, w;
  hx_dtype dtype;
  int32_t channels;
  int kind, exclude;
} pool;

/* Returns the number of taps of a window before the end of the padding. */
static int32_t padded_taps(const hx_axis* axis, int32_t o) {
  const int32_t room = axis->in + axis->after - (o * axis->stride - axis->before);
  return room <= 0 ? 0 : hx_min(axis->kernel, (room + axis->dilation - 1) / axis->dilation);
}

static void pool_byte(const pool* p, const uint8_t* image, hx_range th, int32_t top, hx_range tw, int32_t left,
                      uint8_t* to) {
  const int is_signed = p->dtype == HX_INT8;
  const int32_t taps = (th.end - th.begin) * (tw.end - tw.begin);
  int32_t best = is_signed ? -128 : 0, sum = 0, kh, kw;
  for (kh = th.begin; kh < th.end; ++kh) {
    const uint8_t* row = image + hx_row_at(&p->x, top + kh * p->h.dilation);
    for (kw = tw.begin; kw < tw.end; ++kw) {
      const uint8_t* at = row + (left + kw * p->w.dilation) * p->w.in_step;
      const int32_t value = is_signed ? hx_i8(at) : *at;
      best = hx_max(best, value);
      sum += value;
    }
  }
  if (p->kind == ROUNDED) best = taps ? (sum > 0 ? sum + taps / 2 : sum - taps / 2) / taps : 0;
  *to = (uint8_t)best;
}

/* Sums in blocks, as csrc/cpu/sums.h does. */
static void pool_float(const pool* p, const uint8_t* image, hx_range th, int32_t top, hx_range tw, int32_t left,
                       float count, uint8_t* to) {
  const int32_t taps = (th.end - th.begin) * (tw.end - tw.begin), block = hx_sum_block(taps);
  float total = 0, part = 0, best = -HX_INFINITY;
  int32_t in_block = 0, kh, kw;
  for (kh = th.begin; kh < th.end; ++kh) {
    const uint8_t* row = image + hx_row_at(&p->x, top + kh * p->h.dilation);
    for (kw = tw.begin; kw < tw.end; ++kw) {
      const float x = hx_f32(row + (left + kw * p->w.dilation) * p->w.in_step);
      part += x;
      if (x > best || x != x) best = x;
      if (++in_block == block) {
        total += part;
        part = 0;
        in_block = 0;
      }
    }
  }
  hx_put_f32(to, p->kind == AVERAGE ? (total + part) / count : best);
}

static void pool_pixel(const pool* p, const uint8_t* image, int32_t oy, int32_t ox, uint8_t* to) {
  const int32_t top = oy * p->h.stride - p->h.before, left = ox * p->w.stride - p->w.before;
  const hx_range th = hx_taps(&p->h, oy), tw = hx_taps(&p->w, ox);
  const int32_t inside = (th.end - th.begin) * (tw.end - tw.begin),
                count = p->exclude ? inside : padded_taps(&p->h, oy) * padded_taps(&p->w, ox);
  int32_t c;
  for (c = 0; c < p->channels; ++c, image += p->x.item, to += p->out.item) {
    if (p->x.item == 1)
      pool_byte(p, image, th, top, tw, left, to);
    else
      pool_float(p, image, th, top, tw, left, (float)hx_max(count, 1), to);
  }
}

static void run_pool(const hx_call* call, int kind, int axis, hx_range range) {
  hx_range images, out_rows;
  int32_t n, oy, ox;
  hx_view x, out;
  pool p;
  hx_input(call, 0, &x);
  hx_output(call, 0, &out);
  hx_image_of(&x, &p.x);
  hx_image_of(&out, &p.out);
  p.dtype = x.dtype;
  p.channels = out.shape[out.rank - 1];
  p.kind = kind;
  p.exclude = kind == AVERAGE && hx_attr_i(call, EXCLUDE) != 0;
  hx_read_axis(call, WINDOW, 0, &x, &out, kernel_size(call, 0), &p.h);
  if (x.rank == 4) {
    hx_read_axis(call, WINDOW, 1, &x, &out, kernel_size(call, 1), &p.w);
  } else {
    p.w.in = p.w.out = p.w.kernel = p.w.stride = p.w.dilation = 1;
    p.w.before = p.w.after = p.w.in_step = p.w.out_step = 0;
  }
  images = hx_part(axis, range, 0, out.shape[0]);
  out_rows = hx_part(axis, range, 1, out.shape[1]);
  for (n = images.begin; n < images.end; ++n)
    for (oy = out_rows.begin; oy < out_rows.end; ++oy) {
      const uint8_t* image = p.x.data + (size_t)n * (size_t)p.x.image;
      uint8_t* to = p.out.data + (size_t)n * (size_t)p.out.image + hx_row_at(&p.out, oy);
      for (ox = 0; ox < p.w.out; ++ox, to += p.w.out_step) pool_pixel(&p, image, oy, ox, to);
    }
}

static void run_max(const hx_call* call, int axis, hx_range range) { run_pool(call, MAX, axis, range); }
static void run_avg(const hx_call* call, int axis, hx_range range) { run_pool(call, AVERAGE, axis, range); }

static void run_rounded(const hx_call* call, int axis, hx_range range) { run_pool(call, ROUNDED, axis, range); }

const hx_kernel hx_kernel_max_pool = {"max_pool", CEIL + 1, 3, HX_NEEDS_ROWS, HX_CHECK(check_max), rows, run_max};
const hx_kernel hx_kernel_avg_pool = {"avg_pool", EXCLUDE + 1, 3, HX_NEEDS_ROWS, HX_CHECK(check_avg), rows, run_avg};
const hx_kernel hx_kernel_q31_avg_pool = {"q31_avg_pool",          CEIL + 1, 3,          HX_NEEDS_ROWS,
                                          HX_CHECK(check_rounded), rows,     run_rounded};
