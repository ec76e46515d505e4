#include "window.h"

#define MOST_WINDOW (1 << 24) /* largest stride, dilation, pad or kernel extent */

static int32_t list(const hx_call* call, uint32_t word, int index) {
  return hx_attr_n(call, word + 1 + (uint32_t)index);
}

void hx_read_axis(const hx_call* call, uint32_t word, int i, const hx_view* x, const hx_view* out, int32_t kernel,
                  hx_axis* axis) {
  axis->in = x->shape[1 + i];
  axis->out = out->shape[1 + i];
  axis->kernel = kernel;
  axis->stride = list(call, word, i);
  axis->dilation = list(call, word + HX_LIST_WORDS, i);
  axis->before = list(call, word + 2 * HX_LIST_WORDS, 2 * i);
  axis->after = list(call, word + 2 * HX_LIST_WORDS, 2 * i + 1);
  axis->in_step = x->strides[1 + i];
  axis->out_step = out->strides[1 + i];
}

static int in_window(int32_t value, int32_t least) { return value >= least && value <= MOST_WINDOW; }

hx_status hx_check_window(const hx_call* call, uint32_t word, int i, const hx_view* x, const hx_view* out,
                          int32_t kernel, hx_axis* a) {
  const int32_t spatial = x->rank - 2;
  if (hx_attr_n(call, word) != spatial || hx_attr_n(call, word + HX_LIST_WORDS) != spatial ||
      hx_attr_n(call, word + 2 * HX_LIST_WORDS) != 2 * spatial)
    return hx_refuse(call, "strides, dilations or pads: need one for each spatial axis");
  hx_read_axis(call, word, i, x, out, kernel, a);
  if (!in_window(a->stride, 1) || !in_window(a->dilation, 1) || !in_window(a->before, 0) || !in_window(a->after, 0) ||
      !in_window(kernel, 1) || kernel - 1 > (INT_MAX / 2 - 1) / a->dilation || a->in >= INT_MAX / 4)
    return hx_refuse(call, "strides, dilations, pads or kernel: got one that is too large or too small");
  if (a->out && a->out - 1 > (INT_MAX / 2 - 1) / a->stride)
    return hx_refuse(call, "output: got more than 2^30 positions");
  return HX_OK;
}

/* Returns the number of taps before `end` of a window that begins at `start`. */
static int32_t taps_before(const hx_axis* axis, int32_t start, int32_t end) {
  const int32_t room = end - start;
  if (room <= 0) return 0;
  return hx_min(axis->kernel, axis->dilation == 1 ? room : (room + axis->dilation - 1) / axis->dilation);
}

hx_range hx_taps(const hx_axis* axis, int32_t o) {
  const int32_t start = o * axis->stride - axis->before;
  hx_range taps;
  taps.begin = taps_before(axis, start, 0);
  taps.end = hx_max(taps.begin, taps_before(axis, start, axis->in));
  return taps;
}

static int32_t clip(int32_t x, int32_t low, int32_t high) { return x < low ? low : x > high ? high : x; }

hx_range hx_reached(const hx_axis* axis, hx_range out) {
  const int32_t reach = (axis->kernel - 1) * axis->dilation + 1, above = axis->before - reach;
  hx_range in;
  /* Windows that end before the first row, or begin after the last, touch no row. */
  if (above >= 0) out.begin = hx_max(out.begin, above / axis->stride + 1);
  out.end = hx_min(out.end, (axis->in + axis->before - 1) / axis->stride + 1);
  in.begin = clip(out.begin * axis->stride - axis->before, 0, axis->in);
  in.end =
      out.begin < out.end ? clip((out.end - 1) * axis->stride - axis->before + reach, in.begin, axis->in) : in.begin;
  return in;
}

int hx_is_image(const hx_view* view, int least_rank, int most_rank) {
  return view->rank >= least_rank && view->rank <= most_rank && hx_is_dense_inside(view);
}

hx_status hx_check_conv(const hx_call* call) {
  const int32_t groups = hx_attr_n(call, 3 * HX_LIST_WORDS);
  hx_view v[3];
  const hx_view *x = &v[0], *w = &v[1], *out = &v[2];
  int i;
  if (!hx_views(call, 2, v)) return hx_refuse(call, "need x and a weight");
  if (!hx_is_image(x, 3, 4) || !hx_is_image(out, 3, 4) || w->rank != x->rank || out->rank != x->rank)
    return hx_refuse(call, "need images of rank 3 or 4 with dense channels, and a weight of their rank");
  if (groups < 1 || x->shape[x->rank - 1] % groups || out->shape[x->rank - 1] % groups ||
      w->shape[0] != out->shape[x->rank - 1] || w->shape[1] != x->shape[x->rank - 1] / groups ||
      out->shape[0] != x->shape[0])
    return hx_refuse(call, "channels: need a weight (O, C / groups, ..) with both divisible by groups, and one batch");
  for (i = 0; i < x->rank - 2; ++i) {
    hx_axis a;
    int32_t room;
    const hx_status status = hx_check_window(call, 0, i, x, out, w->shape[2 + i], &a);
    if (status != HX_OK) return status;
    room = a.in + a.before + a.after - ((a.kernel - 1) * a.dilation + 1);
    if (a.out != (room < 0 ? 0 : room / a.stride + 1)) return hx_refuse(call, "output: got another spatial extent");
  }
  return HX_OK;
}

void hx_image_of(const hx_view* view, hx_image* image) {
  image->data = view->data;
  image->image = view->strides[0];
  image->row = view->strides[1];
  image->pixel = view->rank == 4 ? view->strides[2] : 0;
  image->ring = view->ring;
  image->item = view->item;
}

const hx_axis hx_one = {1, 1, 1, 1, 1, 0, 0, 0, 0};

void hx_read_conv(const hx_call* call, hx_conv* c) {
  hx_view v[3];
  const hx_view *x = &v[0], *w = &v[1], *out = &v[2];
  hx_views(call, 2, v);
  hx_read_axis(call, 0, 0, x, out, w->shape[2], &c->h);
  if (x->rank == 3) {
    c->wide = hx_one;
  } else {
    hx_read_axis(call, 0, 1, x, out, w->shape[3], &c->wide);
  }
  hx_image_of(x, &c->x);
  hx_image_of(out, &c->out);
  c->w = w->data;
  c->batch = x->shape[0];
  c->channel_axis = x->rank - 1;
  c->groups = (int32_t)hx_attr_i(call, 3 * HX_LIST_WORDS);
  c->group_in = x->shape[x->rank - 1] / c->groups;
  c->group_out = out->shape[x->rank - 1] / c->groups;
  c->w_out = w->strides[0];
  c->w_in = w->strides[1];
  c->w_row = w->strides[2];
  c->w_column = x->rank == 3 ? 0 : w->strides[3];
}

hx_range hx_conv_rows(const hx_call* call, hx_range rows) {
  hx_view v[3];
  hx_axis axis;
  hx_views(call, 2, v);
  hx_read_axis(call, 0, 0, &v[0], &v[2], v[1].shape[2], &axis);
  return hx_reached(&axis, rows);
}

void hx_read_extras(const hx_call* call, const hx_epilogue* epilogue, hx_extras* extras) {
  hx_view view;
  int i;
  extras->any = 0;
  for (i = 0; i < epilogue->count; ++i)
    if (epilogue->slots[i].kind == HX_SLOT_ADD) {
      hx_input(call, epilogue->slots[i].operand, &view);
      hx_image_of(&view, &extras->images[i]);
      extras->any = 1;
    }
}

void hx_extras_at(const hx_epilogue* epilogue, const hx_extras* extras, int32_t n, int32_t y, int32_t x, int32_t c,
                  const uint8_t** at) {
  int i;
  for (i = 0; i < epilogue->count; ++i) {
    const hx_image* image = &extras->images[i];
    if (epilogue->slots[i].kind != HX_SLOT_ADD) continue;
    at[i] = image->data + (size_t)n * (size_t)image->image + hx_row_at(image, y) + (size_t)x * (size_t)image->pixel +
            (size_t)c * (size_t)image->item;
  }
}
