/* encoded_conv: conv of one group in fp32 with a weight [O, KH * KW * C] in integers or indices of 4 or 8 bits. Terms
 * are added in the order of the weight, in blocks. */
#include "encoded.h"
#include "window.h"

enum { KERNEL = 2, WINDOW = KERNEL + HX_LIST_WORDS, EPILOGUE = WINDOW + 3 * HX_LIST_WORDS };
enum { X, WEIGHT, NUMBERS, BIAS };

static int32_t kernel(const hx_call* call, int i) { return hx_attr_n(call, KERNEL + 1 + (uint32_t)i); }

HX_CHECK_FUNCTION hx_status check(const hx_call* call) {
  hx_view x, weight, numbers, out;
  hx_status status;
  int32_t terms;
  int i;
  if (!hx_input(call, X, &x) || !hx_input(call, WEIGHT, &weight) || !hx_input(call, NUMBERS, &numbers))
    return hx_refuse(call, "need x, a weight and its numbers");
  hx_output(call, 0, &out);
  if (x.dtype != HX_FP32 || out.dtype != HX_FP32) return hx_refuse(call, "dtype: need fp32");
  if (!hx_is_image(&x, 3, 4) || !hx_is_image(&out, 3, 4) || out.rank != x.rank || out.shape[0] != x.shape[0])
    return hx_refuse(call, "need images of rank 3 or 4 with dense channels, and one batch");
  if (hx_attr_n(call, KERNEL) != x.rank - 2) return hx_refuse(call, "kernel: need one for each spatial axis");
  terms = x.shape[x.rank - 1];
  for (i = 0; i < x.rank - 2; ++i) {
    hx_axis a;
    int32_t room;
    status = hx_check_window(call, WINDOW, i, &x, &out, kernel(call, i), &a);
    if (status != HX_OK) return status;
    room = a.in + a.before + a.after - ((a.kernel - 1) * a.dilation + 1);
    if (a.out != (room < 0 ? 0 : room / a.stride + 1)) return hx_refuse(call, "output: got another spatial extent");
    if (terms > INT_MAX / a.kernel) return hx_refuse(call, "kernel: got one that is too large");
    terms *= a.kernel;
  }
  status = hx_check_encoded(call, &weight, &numbers, terms, out.shape[out.rank - 1]);
  if (status == HX_OK) status = hx_check_encoded_bias(call, BIAS, out.shape[out.rank - 1]);
  return status == HX_OK ? hx_check_epilogue(call, EPILOGUE, 1) : status;
}

typedef struct {
  hx_image x, out;
  hx_axis h, wide;
  int32_t batch, channels, columns, terms;
  int channel_axis;
  const uint8_t* bias; /* null: none */
  int32_t bias_step;
} images;

/* A separate function, so that the views take no stack in run(). */
static HX_NOINLINE void read_images(const hx_call* call, images* to) {
  hx_view x, out, bias;
  hx_input(call, X, &x);
  hx_output(call, 0, &out);
  hx_image_of(&x, &to->x);
  hx_image_of(&out, &to->out);
  hx_read_axis(call, WINDOW, 0, &x, &out, kernel(call, 0), &to->h);
  if (x.rank == 3) {
    to->wide = hx_one;
  } else {
    hx_read_axis(call, WINDOW, 1, &x, &out, kernel(call, 1), &to->wide);
  }
  to->batch = x.shape[0];
  to->channel_axis = x.rank - 1;
  to->channels = x.shape[x.rank - 1];
  to->columns = out.shape[x.rank - 1];
  to->terms = to->h.kernel * to->wide.kernel * to->channels;
  to->bias = 0;
  to->bias_step = 0;
  if (hx_input(call, BIAS, &bias)) {
    to->bias = bias.data;
    to->bias_step = bias.strides[bias.rank - 1];
  }
}

static hx_range rows_of(const hx_call* call, hx_range rows) {
  hx_view x, out;
  hx_axis axis;
  hx_input(call, X, &x);
  hx_output(call, 0, &out);
  hx_read_axis(call, WINDOW, 0, &x, &out, kernel(call, 0), &axis);
  return hx_reached(&axis, rows);
}

static HX_NOINLINE float sum_at(const images* s, const uint8_t* image, const hx_column* column, int32_t oy, int32_t ox,
                                int32_t block) {
  const int32_t top = oy * s->h.stride - s->h.before, left = ox * s->wide.stride - s->wide.before;
  const hx_range rows = hx_taps(&s->h, oy), columns = hx_taps(&s->wide, ox);
  float total = 0, part = 0;
  int32_t room = block, kh, kw, i;
  for (kh = rows.begin; kh < rows.end; ++kh) {
    const uint8_t* row = image + hx_row_at(&s->x, top + kh * s->h.dilation);
    for (kw = columns.begin; kw < columns.end; ++kw) {
      const uint8_t* x = row + (size_t)(left + kw * s->wide.dilation) * (size_t)s->wide.in_step;
      const int32_t first = (kh * s->wide.kernel + kw) * s->channels;
      for (i = 0; i < s->channels; ++i, x += 4) {
        part = hx_multiply_add(hx_f32(x), hx_number(column, first + i), part);
        if (--room > 0) continue;
        total += part;
        part = 0;
        room = block;
      }
    }
  }
  return total + part;
}

static void run(const hx_call* call, int axis, hx_range range) {
  const uint8_t* extra[4] = {0, 0, 0, 0};
  images s;
  hx_column column;
  hx_epilogue epilogue;
  hx_extras extras;
  hx_view weight, numbers;
  hx_range all, rows, channels;
  int32_t n, o, oy, ox, block;
  hx_input(call, WEIGHT, &weight);
  hx_input(call, NUMBERS, &numbers);
  read_images(call, &s);
  hx_read_epilogue(call, EPILOGUE, &epilogue);
  hx_read_extras(call, &epilogue, &extras);
  hx_read_columns(call, &numbers, s.terms, &column);
  block = hx_sum_block(hx_max(s.terms, 1));
  all = hx_part(axis, range, 0, s.batch);
  rows = hx_part(axis, range, 1, s.h.out);
  channels = hx_part(axis, range, s.channel_axis, s.columns);
  for (n = all.begin; n < all.end; ++n) {
    const uint8_t* image = s.x.data + (size_t)n * (size_t)s.x.image;
    for (o = channels.begin; o < channels.end; ++o) {
      const float start = s.bias ? hx_f32(s.bias + (size_t)o * (size_t)s.bias_step) : 0.0f;
      hx_set_column(&weight, &numbers, o, s.columns, &column);
      for (oy = rows.begin; oy < rows.end; ++oy) {
        uint8_t* to = s.out.data + (size_t)n * (size_t)s.out.image + (size_t)o * 4 + hx_row_at(&s.out, oy);
        for (ox = 0; ox < s.wide.out; ++ox, to += s.wide.out_step) {
          const float sum = sum_at(&s, image, &column, oy, ox, block);
          if (extras.any) hx_extras_at(&epilogue, &extras, n, oy, ox, o, extra);
          hx_put_f32(to, hx_apply_epilogue(&epilogue, sum + start, extra));
        }
      }
    }
  }
}

const hx_kernel hx_kernel_encoded_conv = {
    "encoded_conv", EPILOGUE + HX_EPILOGUE_WORDS, 0xf & ~4u, HX_NEEDS_ROWS, HX_CHECK(check), rows_of, run};
