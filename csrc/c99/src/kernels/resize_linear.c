/* resize_linear: output i along an axis lies at (i * scale + offset) / unit of the input, between two of its rows or
 * columns. Coordinates are computed in double and weights are fp32, as on the host. */
#include "window.h"

enum { SCALE_H, SCALE_W, OFFSET_H, OFFSET_W, UNIT_H, UNIT_W, WORDS };

static int is_finite(double x) { return x - x == 0; }

HX_CHECK_FUNCTION hx_status check(const hx_call* call) {
  hx_view in, out;
  uint32_t i;
  int last;
  if (call->num_inputs != 1 || !hx_input(call, 0, &in)) return hx_refuse(call, "need one input");
  hx_output(call, 0, &out);
  last = in.rank - 1;
  if (in.dtype != HX_FP32 || out.dtype != HX_FP32)
    return hx_fail(call->net, HX_UNSUPPORTED, "steps", call->step, "resize_linear", "dtype: need fp32");
  if (!hx_is_image(&in, 3, 4) || !hx_is_image(&out, 3, 4) || in.rank != out.rank)
    return hx_refuse(call, "need images of rank 3 or 4 with dense channels");
  if (in.shape[0] != out.shape[0] || in.shape[last] != out.shape[last])
    return hx_refuse(call, "output: need the input's batch and channels");
  if (in.ring && in.rank == 3) return hx_refuse(call, "input: got a ring of columns");
  for (i = 1; i < (uint32_t)last; ++i)
    if (in.shape[i] < 1 && out.shape[i]) return hx_refuse(call, "input: got no elements");
  for (i = SCALE_H; i <= UNIT_W; ++i)
    if (!is_finite(hx_attr_d(call, i)) || (i >= UNIT_H && !(hx_attr_d(call, i) > 0)))
      return hx_refuse(call, "scale, offset or unit: need finite numbers and a positive unit");
  return HX_OK;
}

typedef struct source {
  int32_t low, high;
  float weight; /* weight of the element at `high` */
} source;

static source source_of(const hx_call* call, uint32_t axis, int32_t i, int32_t extent) {
  double at =
      ((double)i * hx_attr_d(call, SCALE_H + axis) + hx_attr_d(call, OFFSET_H + axis)) / hx_attr_d(call, UNIT_H + axis);
  source s;
  at = at < 0 ? 0 : at > extent - 1 ? extent - 1 : at;
  s.low = (int32_t)at;
  s.high = hx_min(s.low + 1, extent - 1);
  s.weight = (float)(at - s.low);
  return s;
}

static hx_range rows(const hx_call* call, hx_range out_rows) {
  hx_view in;
  hx_range r;
  hx_input(call, 0, &in);
  r.begin = 0;
  r.end = in.shape[1];
  if (in.rank == 4 && in.shape[1] > 0) {
    const source first = source_of(call, 0, out_rows.begin, in.shape[1]),
                 last = source_of(call, 0, out_rows.end - 1, in.shape[1]);
    r.begin = hx_min(first.low, last.low);
    r.end = hx_max(first.high, last.high) + 1;
  }
  return r;
}

/* Interpolates a pixel between four pixels, channel by channel. */
static void blend(const uint8_t* upper, const uint8_t* lower, size_t left, size_t right, float down, float across,
                  int32_t channels, uint8_t* to) {
  const float up = 1.0f - down, back = 1.0f - across;
  for (; channels > 0; --channels, left += 4, right += 4, to += 4) {
    const float above = hx_fma(across, hx_f32(upper + right), back * hx_f32(upper + left)),
                below = hx_fma(across, hx_f32(lower + right), back * hx_f32(lower + left));
    hx_put_f32(to, hx_fma(down, below, up * above));
  }
}

static void run(const hx_call* call, int axis, hx_range range) {
  hx_view in, out;
  hx_image from_image, to_image;
  hx_range images, out_rows;
  int32_t n, oy, ox, columns, column;
  int flat;
  hx_input(call, 0, &in);
  hx_output(call, 0, &out);
  if (hx_size(&out) == 0) return;
  hx_image_of(&in, &from_image);
  hx_image_of(&out, &to_image);
  flat = in.rank == 3;
  column = in.rank - 2;
  columns = out.shape[column];
  images = hx_part(axis, range, 0, out.shape[0]);
  out_rows = hx_part(axis, range, 1, flat ? 1 : out.shape[1]);
  for (n = images.begin; n < images.end; ++n)
    for (oy = out_rows.begin; oy < out_rows.end; ++oy) {
      const uint8_t* image = in.data + (size_t)n * (size_t)in.strides[0];
      const uint8_t *upper = image, *lower = image;
      uint8_t* to = out.data + (size_t)n * (size_t)out.strides[0];
      float down = 0;
      if (!flat) {
        const source row = source_of(call, 0, oy, in.shape[1]);
        upper = image + hx_row_at(&from_image, row.low);
        lower = image + hx_row_at(&from_image, row.high);
        to += hx_row_at(&to_image, oy);
        down = row.weight;
      }
      for (ox = 0; ox < columns; ++ox) {
        const source at = source_of(call, 1, ox, in.shape[column]);
        blend(upper, lower, (size_t)at.low * (size_t)in.strides[column], (size_t)at.high * (size_t)in.strides[column],
              down, at.weight, in.shape[in.rank - 1], to + (size_t)ox * (size_t)out.strides[column]);
      }
    }
}

const hx_kernel hx_kernel_resize_linear = {"resize_linear", WORDS, 3, HX_NEEDS_ROWS, HX_CHECK(check), rows, run};
