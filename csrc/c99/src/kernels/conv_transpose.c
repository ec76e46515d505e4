/* conv_transpose in fp32: [N, H, W, C] -> [N, OH, OW, O], each output from the taps that reach it. */
#include "window.h"

/* strides, dilations, pads, output_padding: a list each; groups; epilogue */
enum { PADDING = 3 * HX_LIST_WORDS, GROUPS = 4 * HX_LIST_WORDS, EPILOGUE };

HX_CHECK_FUNCTION hx_status check(const hx_call* call) {
  const int64_t groups = hx_attr_i(call, GROUPS);
  hx_view x, w, out, bias;
  int i;
  if (!hx_input(call, 0, &x) || !hx_input(call, 1, &w)) return hx_refuse(call, "need x and a weight");
  hx_output(call, 0, &out);
  if (!hx_is_image(&x, 3, 4) || !hx_is_image(&out, 3, 4) || w.rank != x.rank || out.rank != x.rank)
    return hx_refuse(call, "need images of rank 3 or 4 with dense channels, and a weight of their rank");
  if (x.dtype != HX_FP32 || w.dtype != HX_FP32 || out.dtype != HX_FP32) return hx_refuse(call, "dtype: need fp32");
  if (groups < 1 || groups > INT_MAX || x.shape[x.rank - 1] % groups || out.shape[x.rank - 1] % groups ||
      w.shape[0] != x.shape[x.rank - 1] || w.shape[1] != out.shape[x.rank - 1] / groups || out.shape[0] != x.shape[0])
    return hx_refuse(call, "channels: need a weight (C, O / groups, ..) with both divisible by groups, and one batch");
  if (hx_attr_i(call, PADDING) != x.rank - 2) return hx_refuse(call, "output_padding: need one for each spatial axis");
  for (i = 0; i < x.rank - 2; ++i) {
    const int64_t more = hx_attr_i(call, PADDING + 1 + (uint32_t)i);
    hx_axis a;
    int64_t full;
    const hx_status status = hx_check_window(call, 0, i, &out, &x, w.shape[2 + i], &a);
    if (status != HX_OK) return status;
    if (more < 0 || more > (1 << 24)) return hx_refuse(call, "output_padding: need 0 or more");
    full = x.shape[1 + i] == 0
               ? 0
               : (int64_t)(x.shape[1 + i] - 1) * a.stride + (int64_t)(a.kernel - 1) * a.dilation + 1 + more;
    full -= (int64_t)a.before + a.after;
    if (out.shape[1 + i] != (full < 0 ? 0 : full)) return hx_refuse(call, "output: got another spatial extent");
  }
  if (hx_input(call, 2, &bias)) {
    if (bias.dtype != HX_FP32 || bias.rank < 1 || bias.shape[bias.rank - 1] != out.shape[out.rank - 1])
      return hx_refuse(call, "bias: need one fp32 for each channel");
    for (i = 0; i < bias.rank - 1; ++i)
      if (bias.shape[i] != 1) return hx_refuse(call, "bias: need extent 1 along all axes but the last");
  }
  return hx_check_epilogue(call, EPILOGUE, 1);
}

/* h and w describe the convolution from the output back to the input: their `out` is the input's extent, their `in`
 * the output's extent. */
typedef struct transposed {
  hx_image x, out;
  hx_axis h, w;
  const uint8_t* weight;
  int32_t w_in, w_out, w_row, w_column, group_in, group_out;
} transposed;

/* Returns the index of the input that tap `t` adds to output `o`, or -1. */
static int32_t input_of(const hx_axis* axis, int32_t o, int32_t t) {
  const int32_t at = o + axis->before - t * axis->dilation;
  return at < 0 || at % axis->stride || at / axis->stride >= axis->out ? -1 : at / axis->stride;
}

static float sum_at(const transposed* c, const uint8_t* image, int32_t group, int32_t o, int32_t oy, int32_t ox,
                    int32_t block) {
  float total = 0, part = 0;
  int32_t terms = 0, kh, kw, i;
  for (kh = 0; kh < c->h.kernel; ++kh) {
    const int32_t iy = input_of(&c->h, oy, kh);
    if (iy < 0) continue;
    for (kw = 0; kw < c->w.kernel; ++kw) {
      const int32_t ix = input_of(&c->w, ox, kw);
      const uint8_t *x, *w;
      if (ix < 0) continue;
      x = image + hx_row_at(&c->x, iy) + (size_t)ix * (size_t)c->x.pixel + (size_t)group * (size_t)c->group_in * 4;
      w = c->weight + (size_t)group * (size_t)c->group_in * (size_t)c->w_in + (size_t)o * (size_t)c->w_out +
          (size_t)kh * (size_t)c->w_row + (size_t)kw * (size_t)c->w_column;
      for (i = 0; i < c->group_in; ++i, x += 4, w += c->w_in) {
        part = hx_multiply_add(hx_f32(x), hx_f32(w), part);
        if (++terms < block) continue;
        total += part;
        part = 0;
        terms = 0;
      }
    }
  }
  return total + part;
}

static hx_range rows(const hx_call* call, hx_range range) {
  hx_view x, w, out;
  hx_axis axis;
  hx_range found;
  int32_t begin, end;
  hx_input(call, 0, &x);
  hx_input(call, 1, &w);
  hx_output(call, 0, &out);
  hx_read_axis(call, 0, 0, &out, &x, w.shape[2], &axis);
  begin = range.begin + axis.before - (axis.kernel - 1) * axis.dilation;
  end = range.end - 1 + axis.before;
  found.begin = begin <= 0 ? 0 : hx_min((begin + axis.stride - 1) / axis.stride, axis.out);
  found.end = hx_min(end / axis.stride + 1, axis.out);
  if (found.end < found.begin) found.end = found.begin;
  return found;
}

static void run(const hx_call* call, int axis, hx_range range) {
  const uint8_t* extra[4] = {0, 0, 0, 0};
  hx_view x, w, out;
  transposed c;
  hx_epilogue epilogue;
  hx_extras extras;
  hx_range images, rows, channels;
  int32_t n, oy, ox, o, block;
  int has_bias;
  hx_input(call, 0, &x);
  hx_input(call, 1, &w);
  hx_output(call, 0, &out);
  hx_image_of(&x, &c.x);
  hx_image_of(&out, &c.out);
  hx_read_axis(call, 0, 0, &out, &x, w.shape[2], &c.h);
  if (x.rank == 4) {
    hx_read_axis(call, 0, 1, &out, &x, w.shape[3], &c.w);
  } else {
    memset(&c.w, 0, sizeof c.w);
    c.w.in = c.w.out = c.w.kernel = c.w.stride = c.w.dilation = 1;
  }
  c.weight = w.data;
  c.w_in = w.strides[0];
  c.w_out = w.strides[1];
  c.w_row = w.strides[2];
  c.w_column = x.rank == 4 ? w.strides[3] : 0;
  c.group_in = x.shape[x.rank - 1] / (int32_t)hx_attr_i(call, GROUPS);
  c.group_out = w.shape[1];
  images = hx_part(axis, range, 0, out.shape[0]);
  rows = hx_part(axis, range, 1, out.shape[1]);
  channels = hx_part(axis, range, out.rank - 1, out.shape[out.rank - 1]);
  block = hx_sum_block(c.h.kernel * c.w.kernel * hx_max(c.group_in, 1));
  hx_read_epilogue(call, EPILOGUE, &epilogue);
  hx_read_extras(call, &epilogue, &extras);
  has_bias = hx_input(call, 2, &w); /* the weight's view is no longer needed */
  for (n = images.begin; n < images.end; ++n)
    for (oy = rows.begin; oy < rows.end; ++oy)
      for (ox = 0; ox < c.w.in; ++ox)
        for (o = channels.begin; o < channels.end; ++o) {
          uint8_t* to = c.out.data + (size_t)n * (size_t)c.out.image + hx_row_at(&c.out, oy) +
                        (size_t)ox * (size_t)c.out.pixel + (size_t)o * 4;
          float sum =
              sum_at(&c, c.x.data + (size_t)n * (size_t)c.x.image, o / c.group_out, o % c.group_out, oy, ox, block);
          if (has_bias) sum += hx_f32(w.data + (size_t)o * (size_t)w.strides[w.rank - 1]);
          if (extras.any) hx_extras_at(&epilogue, &extras, n, oy, ox, o, extra);
          hx_put_f32(to, hx_apply_epilogue(&epilogue, sum, extra));
        }
}

const hx_kernel hx_kernel_conv_transpose = {
    "conv_transpose", EPILOGUE + HX_EPILOGUE_WORDS, 0xf & ~4u, HX_NEEDS_ROWS, HX_CHECK(check), rows, run};
