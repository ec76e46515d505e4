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
      if (v.shape[axis] != 1) return hx_refuse(call, "bias: need all along its last axis");
  }
  return hx_check_epilogue(call, HX_CONV_WORDS, 1);
}

static float sum_at(const hx_conv* c, const uint8_t* image, const uint8_t* weight, int32_t oy, hx_range rows,
                    int32_t ox, hx_range columns, int32_t block) {
  const int32_t left = ox * c->wide.stride - c->wide.before, top = oy * c->h.stride - c->h.before;
  float total = 0, part = 0;
  int32_t terms = 0, kh, kw, i;
  for (kh = rows.begin; kh < rows.end; ++kh) {
    const uint8_t* row = image + hx_row_at(&c->x, top + kh * c->h.dilation);
    for (kw = columns.begin; kw < columns.end; ++kw) {
      const uint8_t* x = row + (left + kw * c->wide.dilation) * c->wide.in_step;
      const uint8_t* w = weight + kh * c->w_row + kw * c->w_column;
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

static void run(const hx_call* call, int axis, hx_range range) {
  const uint8_t* extra[4] = {0, 0, 0, 0};
  hx_conv c;
  hx_epilogue epilogue;
  hx_extras extras;
  hx_view bias;
  hx_range images, rows, channels;
  int32_t n, o, oy, ox, block;
  const int has_bias = hx_input(call, 2, &bias);
  hx_read_conv(call, &c);
  hx_read_epilogue(call, HX_CONV_WORDS, &epilogue);
  hx_read_extras(call, &epilogue, &extras);
  images = hx_part(axis, range, 0, c.batch);
  rows = hx_part(axis, range, 1, c.h.out);
  channels = hx_part(axis, range, c.channel_axis, c.groups * c.group_out);
  block = hx_sum_block(c.h.kernel * c.wide.kernel * hx_max(c.group_in, 1));
  for (n = images.begin; n < images.end; ++n)
    for (o = channels.begin; o < channels.end; ++o) {
      const uint8_t* image =
          c.x.data + (size_t)n * (size_t)c.x.image + (size_t)(o / c.group_out) * (size_t)c.group_in * 4;
      const uint8_t* weight = c.w + (size_t)o * (size_t)c.w_out;
      const float start = has_bias ? hx_f32(bias.data + (size_t)o * (size_t)bias.strides[bias.rank - 1]) : 0.0f;
      for (oy = rows.begin; oy < rows.end; ++oy) {
        const hx_range taps = hx_taps(&c.h, oy);
        uint8_t* to = c.out.data + (size_t)n * (size_t)c.out.image + (size_t)o * 4 + hx_row_at(&c.out, oy);
        for (ox = 0; ox < c.wide.out; ++ox, to += c.wide.out_step) {
          const float sum = sum_at(&c, image, weight, oy, taps, ox, hx_taps(&c.wide, ox), block) + start;
          if (extras.any) hx_extras_at(&epilogue, &extras, n, oy, ox, o, extra);
          hx_put_f32(to, hx_apply_epilogue(&epilogue, sum, extra));
        }
      }
    }
}

const hx_kernel hx_kernel_conv = {
    "conv", HX_CONV_WORDS + HX_EPILOGUE_WORDS, 0xf & ~4u, HX_NEEDS_ROWS, HX_CHECK(check), hx_conv_rows, run};
