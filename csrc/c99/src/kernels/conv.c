/* conv in fp32: [N, H, W, C] -> [N, OH, OW, O], a bias, an epilogue. Terms are added in the order of the weights (rows,
 * columns, channels), in blocks. */
#include "window.h"

HX_CHECK_FUNCTION hx_status check(const hx_call* call) {
  hx_view v;
  const hx_status status = hx_check_conv(call);
  if (status != HX_OK) return status;
  hx_input(call, 1, &v);
  if (v.dtype != HX_FP32 || (hx_input(call, 0, &v) && v.dtype != HX_FP32) ||
      (hx_output(call, 0, &v) && v.dtype != HX_FP32))
    return hx_refuse(call, "dtype: need fp32");
  if (hx_input(call, 2, &v)) {
    hx_view out;
    int axis;
    hx_output(call, 0, &out);
    if (v.dtype != HX_FP32 || v.rank < 1 || v.shape[v.rank - 1] != out.shape[out.rank - 1])
      return hx_refuse(call, "bias: need one fp32 for each channel");
    for (axis = 0; axis < v.rank - 1; ++axis)
      if (v.shape[axis] != 1) return hx_refuse(call, "bias: need extent 1 along all axes but the last");
  }
  return hx_check_epilogue(call, HX_CONV_WORDS, 1);
}

#define LANES 4 /* channels that are summed at once */

/* For LANES output channels: the addresses of their image and weights, and the initial values of their sums. */
typedef struct lanes {
  const uint8_t *x[LANES], *w[LANES];
  float start[LANES];
} lanes;

/* Reads the lanes of channels from `first` on. Lanes after the last channel repeat the last channel. */
static void read_lanes(const hx_conv* c, const hx_view* bias, int32_t n, int32_t first, int32_t end, lanes* to) {
  int32_t k;
  for (k = 0; k < LANES; ++k) {
    const int32_t o = hx_min(first + k, end - 1);
    to->x[k] = c->x.data + (size_t)n * (size_t)c->x.image + (size_t)(o / c->group_out) * (size_t)c->group_in * 4;
    to->w[k] = c->w + (size_t)o * (size_t)c->w_out;
    to->start[k] = bias ? hx_f32(bias->data + (size_t)o * (size_t)bias->strides[bias->rank - 1]) : 0.0f;
  }
}

/* Adds n products of adjacent input channels to `part`. x and w are byte offsets. */
static void add_products(const lanes* l, size_t x, size_t w, size_t w_step, int32_t n, float* part) {
  const uint8_t *x0 = l->x[0] + x, *x1 = l->x[1] + x, *x2 = l->x[2] + x, *x3 = l->x[3] + x;
  const uint8_t *w0 = l->w[0] + w, *w1 = l->w[1] + w, *w2 = l->w[2] + w, *w3 = l->w[3] + w;
  float p0 = part[0], p1 = part[1], p2 = part[2], p3 = part[3];
  size_t i = 0, k = 0;
  for (; n > 0; --n, i += 4, k += w_step) {
    p0 = hx_multiply_add(hx_f32(x0 + i), hx_f32(w0 + k), p0);
    p1 = hx_multiply_add(hx_f32(x1 + i), hx_f32(w1 + k), p1);
    p2 = hx_multiply_add(hx_f32(x2 + i), hx_f32(w2 + k), p2);
    p3 = hx_multiply_add(hx_f32(x3 + i), hx_f32(w3 + k), p3);
  }
  part[0] = p0, part[1] = p1, part[2] = p2, part[3] = p3;
}

static void fold(float* total, float* part) {
  int32_t k;
  for (k = 0; k < LANES; ++k) {
    total[k] += part[k];
    part[k] = 0;
  }
}

static HX_NOINLINE void sums_at(const hx_conv* c, const lanes* l, int32_t oy, hx_range rows, int32_t ox,
                                hx_range columns, int32_t block, float* total) {
  const int32_t left = ox * c->wide.stride - c->wide.before, top = oy * c->h.stride - c->h.before;
  float part[LANES] = {0, 0, 0, 0};
  int32_t room = block, kh, kw, i, n;
  memset(total, 0, LANES * sizeof *total);
  for (kh = rows.begin; kh < rows.end; ++kh) {
    const size_t row = hx_row_at(&c->x, top + kh * c->h.dilation);
    for (kw = columns.begin; kw < columns.end; ++kw) {
      size_t x = row + (size_t)(left + kw * c->wide.dilation) * (size_t)c->wide.in_step;
      size_t w = (size_t)(kh * c->w_row + kw * c->w_column);
      for (i = 0; i < c->group_in; i += n, x += (size_t)n * 4, w += (size_t)n * (size_t)c->w_in) {
        n = hx_min(c->group_in - i, room);
        add_products(l, x, w, (size_t)c->w_in, n, part);
        if ((room -= n) > 0) continue;
        fold(total, part);
        room = block;
      }
    }
  }
  fold(total, part);
}

static void run(const hx_call* call, int axis, hx_range range) {
  const uint8_t* extra[4] = {0, 0, 0, 0};
  hx_conv c;
  hx_epilogue epilogue;
  hx_extras extras;
  hx_view bias;
  hx_range images, rows, channels;
  lanes l;
  float sums[LANES];
  int32_t n, o, oy, ox, k, block;
  const int has_bias = hx_input(call, 2, &bias);
  hx_read_conv(call, &c);
  hx_read_epilogue(call, HX_CONV_WORDS, &epilogue);
  hx_read_extras(call, &epilogue, &extras);
  images = hx_part(axis, range, 0, c.batch);
  rows = hx_part(axis, range, 1, c.h.out);
  channels = hx_part(axis, range, c.channel_axis, c.groups * c.group_out);
  block = hx_sum_block(c.h.kernel * c.wide.kernel * hx_max(c.group_in, 1));
  for (n = images.begin; n < images.end; ++n)
    for (o = channels.begin; o < channels.end; o += LANES) {
      read_lanes(&c, has_bias ? &bias : 0, n, o, channels.end, &l);
      for (oy = rows.begin; oy < rows.end; ++oy) {
        const hx_range taps = hx_taps(&c.h, oy);
        uint8_t* to = c.out.data + (size_t)n * (size_t)c.out.image + (size_t)o * 4 + hx_row_at(&c.out, oy);
        for (ox = 0; ox < c.wide.out; ++ox, to += c.wide.out_step) {
          sums_at(&c, &l, oy, taps, ox, hx_taps(&c.wide, ox), block, sums);
          for (k = 0; k < hx_min(LANES, channels.end - o); ++k) {
            if (extras.any) hx_extras_at(&epilogue, &extras, n, oy, ox, o + k, extra);
            hx_put_f32(to + 4 * k, hx_apply_epilogue(&epilogue, sums[k] + l.start[k], extra));
          }
        }
      }
    }
}

const hx_kernel hx_kernel_conv = {
    "conv", HX_CONV_WORDS + HX_EPILOGUE_WORDS, 0xf & ~4u, HX_NEEDS_ROWS, HX_CHECK(check), hx_conv_rows, run};
