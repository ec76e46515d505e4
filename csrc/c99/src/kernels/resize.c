/* resize_nearest: output i along an axis is the input at index round((i * scale + offset) / unit), in integers. */
#include "window.h"

enum { SCALE_H, SCALE_W, OFFSET_H, OFFSET_W, UNIT_H, UNIT_W, MODE };

HX_CHECK_FUNCTION int is_mode(const char* mode) {
  return hx_same(mode, "floor") || hx_same(mode, "ceil") || hx_same(mode, "round_prefer_floor") ||
         hx_same(mode, "round_prefer_ceil");
}

HX_CHECK_FUNCTION hx_status check(const hx_call* call) {
  hx_view in, out;
  uint32_t i;
  int last;
  if (call->num_inputs != 1 || !hx_input(call, 0, &in)) return hx_refuse(call, "need one input");
  hx_output(call, 0, &out);
  last = in.rank - 1;
  if (!hx_is_image(&in, 3, 4) || !hx_is_image(&out, 3, 4) || in.rank != out.rank || in.item != out.item)
    return hx_refuse(call, "need images of rank 3 or 4 with dense channels");
  if (in.shape[0] != out.shape[0] || in.shape[last] != out.shape[last])
    return hx_refuse(call, "output: need the input's batch and channels");
  if (in.ring && in.rank == 3) return hx_refuse(call, "input: got a ring of columns");
  for (i = 1; i < (uint32_t)last; ++i)
    if (in.shape[i] < 1 && out.shape[i]) return hx_refuse(call, "input: got no elements");
  for (i = SCALE_H; i <= UNIT_W; ++i) {
    const int64_t most =
        ((int64_t)1 << 59) / (i < OFFSET_H ? out.shape[i == SCALE_H && last == 3 ? 1 : last - 1] + 1 : 1);
    if (hx_attr_i(call, i) > most || hx_attr_i(call, i) < (i >= UNIT_H ? 1 : -most))
      return hx_fail(call->net, HX_UNSUPPORTED, "steps", call->step, call->kernel->name,
                     "scale, offset or unit: need those whose products with the output fit 64 bits");
  }
  if (!hx_is_string(call, MODE) || !is_mode(hx_attr_s(call, MODE))) return hx_refuse(call, "mode: got an unknown one");
  return HX_OK;
}

static int64_t floor_of(int64_t n, int64_t d) { return n / d - (n % d < 0); }

static int32_t source(const hx_call* call, uint32_t axis, int32_t i, int32_t extent) {
  const int64_t n = i * hx_attr_i(call, SCALE_H + axis) + hx_attr_i(call, OFFSET_H + axis),
                d = hx_attr_i(call, UNIT_H + axis);
  const char* mode = hx_attr_s(call, MODE);
  int64_t at;
  if (hx_same(mode, "floor"))
    at = floor_of(n, d);
  else if (hx_same(mode, "ceil"))
    at = -floor_of(-n, d);
  else if (hx_same(mode, "round_prefer_floor"))
    at = -floor_of(d - 2 * n, 2 * d);
  else
    at = floor_of(2 * n + d, 2 * d);
  return at < 0 ? 0 : at >= extent ? extent - 1 : (int32_t)at;
}

static hx_range rows(const hx_call* call, hx_range out_rows) {
  hx_view in;
  hx_range r = out_rows;
  hx_input(call, 0, &in);
  r.begin = 0;
  r.end = in.shape[1];
  if (in.rank == 4 && in.shape[1] > 0) {
    const int32_t first = source(call, 0, out_rows.begin, in.shape[1]),
                  last = source(call, 0, out_rows.end - 1, in.shape[1]);
    r.begin = hx_min(first, last);
    r.end = hx_max(first, last) + 1;
  }
  return r;
}

static void run(const hx_call* call, int axis, hx_range range) {
  hx_view in, out;
  hx_image from_image, to_image;
  hx_range images, out_rows;
  int32_t n, oy, ox, columns;
  int flat;
  hx_input(call, 0, &in);
  hx_output(call, 0, &out);
  if (hx_size(&out) == 0) return;
  hx_image_of(&in, &from_image);
  hx_image_of(&out, &to_image);
  flat = in.rank == 3;
  columns = out.shape[in.rank - 2];
  images = hx_part(axis, range, 0, out.shape[0]);
  out_rows = hx_part(axis, range, 1, flat ? 1 : out.shape[1]);
  for (n = images.begin; n < images.end; ++n)
    for (oy = out_rows.begin; oy < out_rows.end; ++oy) {
      const uint8_t* from = in.data + (size_t)n * (size_t)in.strides[0];
      uint8_t* to = out.data + (size_t)n * (size_t)out.strides[0];
      if (!flat) {
        from += hx_row_at(&from_image, source(call, 0, oy, in.shape[1]));
        to += hx_row_at(&to_image, oy);
      }
      for (ox = 0; ox < columns; ++ox)
        memcpy(to + (size_t)ox * (size_t)out.strides[in.rank - 2],
               from + (size_t)source(call, 1, ox, in.shape[in.rank - 2]) * (size_t)in.strides[in.rank - 2],
               (size_t)in.shape[in.rank - 1] * (size_t)in.item);
    }
}

const hx_kernel hx_kernel_resize_nearest = {"resize_nearest", MODE + 1, 3, HX_NEEDS_ROWS, HX_CHECK(check), rows, run};
