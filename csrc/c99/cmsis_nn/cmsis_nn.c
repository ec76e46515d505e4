/* Steps computed by CMSIS-NN, on whole images or on some of their rows. If the input rows wrap around the end of a
 * ring, they are copied to scratch, if it has room.
 *
 *   step                              function
 *   q31_conv, groups 1                arm_convolve_wrapper_s8
 *   q31_conv, one channel to a group  arm_depthwise_conv_wrapper_s8
 *   q31_matmul                        arm_convolve_wrapper_s8, as a convolution of 1 x 1 over rows of K channels
 *   q31_add                           arm_elementwise_add_s8
 *   q31_avg_pool, max_pool            arm_avgpool_s8, arm_max_pool_s8
 *
 * All tensors are int8, without gaps between pixels and rows. Some rows of an image are passed as an image with fewer
 * rows. A part of an image has padding at the top only where windows reach above the whole image. */
#include "cmsis_nn.h"

#include "../src/kernels/matmul.h"
#include "../src/kernels/q31.h"
#include "../src/kernels/window.h"
#include "arm_nnfunctions.h"

#define MOST_EXTENT 65535 /* some counters of CMSIS-NN are uint16_t */

/* The inputs of q31_conv and q31_matmul. */
enum { X, Y, MULTIPLIER, BIAS, X_ZERO, Y_ZERO };
/* Attributes of q31_add. The attributes of pools begin with kernel_sizes, strides, dilations, pads. */
enum { ADD_X_ZERO, ADD_X, ADD_Y_ZERO = 3, ADD_Y, ADD_OUTPUT = 6, ADD_CLAMP = 8 };
enum { KERNELS = 0, WINDOW = HX_LIST_WORDS };
#define SUM_SHIFT 20 /* q31_add: fraction bits of scaled operands */

static hx_range range_of(int32_t begin, int32_t end) {
  hx_range range;
  range.begin = begin;
  range.end = end;
  return range;
}

static int is_int8(const hx_call* call, uint32_t operand) {
  hx_view view;
  return hx_operand(call, operand, &view) && view.dtype == HX_INT8;
}

/* True if the pixels of a row and the rows of an image are adjacent. `pixels`: pixels of a row. */
static int is_dense(const hx_image* image, int32_t rows, int32_t pixels, int32_t channels) {
  return (pixels == 1 || image->pixel == channels) && (rows == 1 || image->row == pixels * channels);
}

/* ---- windows: convolutions and pools ---- */

typedef struct window {
  hx_axis h, w;
  hx_image x, out;
  int32_t batch, in_channels, out_channels;
} window;

/* CMSIS-NN's parameters for some output rows. */
typedef struct part {
  cmsis_nn_dims in, out;
  cmsis_nn_tile stride, padding;
  hx_range rows; /* input rows that the output rows need */
} part;

static int find_part(const window* w, hx_range rows, part* p) {
  p->rows = hx_reached(&w->h, rows);
  p->in.n = p->out.n = 1;
  p->in.h = p->rows.end - p->rows.begin;
  p->in.w = w->w.in;
  p->in.c = w->in_channels;
  p->out.h = rows.end - rows.begin;
  p->out.w = w->w.out;
  p->out.c = w->out_channels;
  p->stride.h = w->h.stride;
  p->stride.w = w->w.stride;
  p->padding.h = hx_max(0, w->h.before - rows.begin * w->h.stride);
  p->padding.w = w->w.before;
  return p->in.h > 0 && p->out.h > 0;
}

/* True if every window reaches an element of the input, and extents fit in uint16_t. So a window of one element has no
 * padding: for such windows CMSIS-NN uses a function without checks. */
static int is_axis_right(const hx_axis* a) {
  return a->in >= 1 && a->out >= 1 && a->in <= MOST_EXTENT && a->out <= MOST_EXTENT && a->kernel <= MOST_EXTENT &&
         a->before < (a->kernel - 1) * a->dilation + 1 && (a->out - 1) * a->stride - a->before < a->in;
}

static hx_status check_window(const hx_call* call, const window* w) {
  if (!is_axis_right(&w->h) || !is_axis_right(&w->w) || w->in_channels > MOST_EXTENT || w->out_channels > MOST_EXTENT)
    return hx_refuse(call, "body: got a window that reaches too far, or too large a tensor");
  if (!is_dense(&w->x, w->h.in, w->w.in, w->in_channels) || !is_dense(&w->out, w->h.out, w->w.out, w->out_channels))
    return hx_refuse(call, "body: need images without gaps");
  return w->x.data == w->out.data ? hx_refuse(call, "body: cannot compute in place") : HX_OK;
}

/* Returns the adjacent rows of an image: in place, or copied to `room`; null if `room` is too small. */
static const int8_t* rows_of(const hx_image* image, int32_t n, hx_range rows, uint8_t* room, size_t room_bytes) {
  const uint8_t* from = image->data + (size_t)n * (size_t)image->image;
  const size_t row = (size_t)image->row;
  const int32_t count = rows.end - rows.begin;
  int32_t i;
  if (!image->ring || rows.begin % image->ring + count <= image->ring)
    return (const int8_t*)(from + hx_row_at(image, rows.begin));
  if (room_bytes < (size_t)count * row) return 0;
  for (i = 0; i < count; ++i) memcpy(room + (size_t)i * row, from + hx_row_at(image, rows.begin + i), row);
  return (const int8_t*)room;
}

static int8_t* out_of(const window* w, int32_t n, hx_range rows) {
  return (int8_t*)(w->out.data + (size_t)n * (size_t)w->out.image + hx_row_at(&w->out, rows.begin));
}

/* Finds the images and rows of a range. Returns 0 if the range is along an axis other than images or rows. */
static int find_ranges(const window* w, int axis, hx_range range, hx_range* images, hx_range* rows) {
  *images = hx_part(axis, range, 0, w->batch);
  *rows = hx_part(axis, range, 1, w->h.out);
  return axis <= 1;
}

/* Returns the largest scratch needed for the whole output, its first row or its second row. */
static uint32_t most_bytes(const window* w, const void* layer, int32_t (*bytes_of)(const void*, const part*)) {
  int32_t most = 0, begin;
  part p;
  if (find_part(w, range_of(0, w->h.out), &p)) most = bytes_of(layer, &p);
  for (begin = 0; begin < hx_min(w->h.out, 2); ++begin)
    if (find_part(w, range_of(begin, begin + 1), &p)) most = hx_max(most, bytes_of(layer, &p));
  return (uint32_t)most;
}

static size_t behind(uint32_t bytes) {
  return (bytes + HX_SCRATCH_ALIGNMENT - 1) & ~(size_t)(HX_SCRATCH_ALIGNMENT - 1);
}

/* ---- convolutions and products ---- */

typedef struct layer {
  window w;
  const int8_t* weight;
  const int32_t* bias;
  cmsis_nn_dims filter, bias_dims;
  cmsis_nn_tile dilation;
  cmsis_nn_activation activation;
  cmsis_nn_per_channel_quant_params quant;
  int32_t x_offset, out_offset, depthwise;
} layer;

static void read_layer(const hx_call* call, const hx_body_step* row, uint32_t word, layer* l) {
  hx_view view;
  l->x_offset = hx_input(call, X_ZERO, &view) ? -hx_i8(view.data) : 0;
  hx_read_clamp(call, word, HX_INT8, &l->out_offset, &l->activation.min, &l->activation.max);
  l->bias = row->bias;
  if (!l->bias && hx_input(call, BIAS, &view)) l->bias = (const int32_t*)(const void*)view.data;
  l->quant.multiplier = (int32_t*)(uintptr_t)row->multipliers; /* CMSIS-NN only reads the multipliers */
  if (!row->multipliers && hx_input(call, MULTIPLIER, &view)) l->quant.multiplier = (int32_t*)(void*)view.data;
  l->quant.shift = (int32_t*)(uintptr_t)row->shifts;
  l->bias_dims.n = l->bias_dims.h = l->bias_dims.w = 1;
  l->bias_dims.c = l->w.out_channels;
}

static void read_conv(const hx_call* call, const hx_body_step* row, layer* l) {
  hx_conv c;
  hx_read_conv(call, &c);
  l->w.h = c.h;
  l->w.w = c.wide;
  l->w.x = c.x;
  l->w.out = c.out;
  l->w.batch = c.batch;
  l->w.in_channels = c.groups * c.group_in;
  l->w.out_channels = c.groups * c.group_out;
  l->weight = (const int8_t*)c.w;
  l->depthwise = c.groups > 1;
  l->filter.n = l->depthwise ? 1 : l->w.out_channels;
  l->filter.h = c.h.kernel;
  l->filter.w = c.wide.kernel;
  l->filter.c = l->depthwise ? l->w.out_channels : l->w.in_channels;
  l->dilation.h = c.h.dilation;
  l->dilation.w = c.wide.dilation;
  read_layer(call, row, 3 * HX_LIST_WORDS + 1, l);
}

static void conv_params(const layer* l, const part* p, cmsis_nn_conv_params* to) {
  to->input_offset = l->x_offset;
  to->output_offset = l->out_offset;
  to->stride = p->stride;
  to->padding = p->padding;
  to->dilation = l->dilation;
  to->activation = l->activation;
}

static void depthwise_params(const layer* l, const part* p, cmsis_nn_dw_conv_params* to) {
  to->input_offset = l->x_offset;
  to->output_offset = l->out_offset;
  to->ch_mult = l->w.out_channels / l->w.in_channels;
  to->stride = p->stride;
  to->padding = p->padding;
  to->dilation = l->dilation;
  to->activation = l->activation;
}

static int32_t layer_bytes(const void* of, const part* p) {
  const layer* l = (const layer*)of;
  cmsis_nn_conv_params params;
  cmsis_nn_dw_conv_params depthwise;
  if (l->depthwise) {
    depthwise_params(l, p, &depthwise);
    return arm_depthwise_conv_wrapper_s8_get_buffer_size(&depthwise, &p->in, &l->filter, &p->out);
  }
  conv_params(l, p, &params);
  return arm_convolve_wrapper_s8_get_buffer_size(&params, &p->in, &l->filter, &p->out);
}

static int run_layer(const layer* l, const part* p, const int8_t* x, uint8_t* scratch, int32_t bytes, int8_t* to) {
  cmsis_nn_context context;
  cmsis_nn_conv_params params;
  cmsis_nn_dw_conv_params depthwise;
  context.buf = scratch;
  context.size = bytes;
  if (l->depthwise) {
    depthwise_params(l, p, &depthwise);
    return arm_depthwise_conv_wrapper_s8(&context, &depthwise, &l->quant, &p->in, x, &l->filter, l->weight,
                                         &l->bias_dims, l->bias, &p->out, to) == ARM_CMSIS_NN_SUCCESS;
  }
  conv_params(l, p, &params);
  return arm_convolve_wrapper_s8(&context, &params, &l->quant, &p->in, x, &l->filter, l->weight, &l->bias_dims, l->bias,
                                 &p->out, to) == ARM_CMSIS_NN_SUCCESS;
}

/* True if the operand is a dense vector aligned for int32_t. The kernel has checked that the operand has one value for
 * each channel. */
static int is_int32_row(const hx_call* call, uint32_t operand) {
  hx_view view;
  return hx_input(call, operand, &view) && view.rank == 1 && hx_is_dense_inside(&view) && (uintptr_t)view.data % 4 == 0;
}

/* Checks that operands are int8, weights have no zero point, and parameters are int32. */
static hx_status check_operands(const hx_call* call, const hx_body_step* row, int32_t terms) {
  hx_view view;
  int32_t i;
  if (!is_int8(call, X) || !is_int8(call, Y) || !is_int8(call, call->num_inputs))
    return hx_refuse(call, "body: need int8");
  if (hx_input(call, Y_ZERO, &view))
    for (i = 0; i < hx_size(&view); ++i)
      if (view.data[view.rank ? i * view.strides[0] : 0])
        return hx_refuse(call, "body: need weights without zero point");
  if (!(row->multipliers || is_int32_row(call, MULTIPLIER)) || !row->shifts || !(row->bias || is_int32_row(call, BIAS)))
    return hx_refuse(call, "body: need a multiplier, shift and bias for each channel, as int32");
  return terms > MOST_EXTENT ? hx_refuse(call, "body: got too many terms of a sum") : HX_OK;
}

/* True if weights are stored as (O, H, W, C), or for depthwise as (H, W, O). */
static int is_weight_right(const hx_conv* c, int depthwise) {
  const int32_t tap = depthwise ? c->groups * c->group_out : c->group_in;
  return (depthwise ? c->w_out == 1 : c->group_out == 1 || c->w_out == tap * c->wide.kernel * c->h.kernel) &&
         (c->group_in == 1 || c->w_in == 1) && (c->wide.kernel == 1 || c->w_column == tap) &&
         (c->h.kernel == 1 || c->w_row == tap * c->wide.kernel);
}

static hx_status check_conv(const hx_call* call, const hx_body_step* row, uint32_t* bytes) {
  layer l;
  hx_conv c;
  hx_status status;
  hx_read_conv(call, &c);
  if (c.groups > 1 && c.group_in > 1) return hx_refuse(call, "body: need one group, or one channel in each");
  if (!is_weight_right(&c, c.groups > 1)) return hx_refuse(call, "body: need weights with the channels innermost");
  status = check_operands(call, row, c.h.kernel * c.wide.kernel * c.group_in);
  if (status != HX_OK) return status;
  read_conv(call, row, &l);
  status = check_window(call, &l.w);
  if (status == HX_OK) *bytes = most_bytes(&l.w, &l, layer_bytes);
  return status;
}

static int run_conv(const hx_call* call, const hx_body_step* row, uint8_t* scratch, int axis, hx_range range) {
  hx_range images, rows;
  int32_t bytes, n;
  layer l;
  part p;
  read_conv(call, row, &l);
  if (!find_ranges(&l.w, axis, range, &images, &rows) || !find_part(&l.w, rows, &p)) return 0;
  bytes = layer_bytes(&l, &p);
  if (bytes < 0 || (uint32_t)bytes > row->bytes) return 0;
  for (n = images.begin; n < images.end; ++n) {
    const size_t room = behind((uint32_t)bytes);
    const int8_t* x =
        rows_of(&l.w.x, n, p.rows, scratch ? scratch + room : 0, room < row->bytes ? row->bytes - room : 0);
    if (!x || !run_layer(&l, &p, x, scratch, bytes, out_of(&l.w, n, rows))) return 0;
  }
  return 1;
}

const hx_body hx_cmsis_nn_conv = {"cmsis_nn_conv", "q31_conv", check_conv, run_conv};

/* Reads a matrix product as a convolution: M pixels of K channels, N windows of 1 x 1. */
static int read_matmul(const hx_call* call, const hx_body_step* row, layer* l, part* p, hx_matmul* m, hx_rows* walk) {
  const int some = hx_begin_matmul(call, 0, hx_attr_i(call, 0) != 0, m, walk);
  l->w.out_channels = m->n;
  l->depthwise = 0;
  l->filter.n = m->n;
  l->filter.h = l->filter.w = p->in.n = p->in.h = p->out.n = p->out.h = 1;
  l->filter.c = p->in.c = m->k;
  p->in.w = p->out.w = m->m;
  p->out.c = m->n;
  p->stride.h = p->stride.w = l->dilation.h = l->dilation.w = 1;
  p->padding.h = p->padding.w = 0;
  read_layer(call, row, 1, l);
  return some;
}

static hx_status check_matmul(const hx_call* call, const hx_body_step* row, uint32_t* bytes) {
  hx_matmul m;
  hx_rows walk;
  layer l;
  part p;
  hx_status status;
  if (!read_matmul(call, row, &l, &p, &m, &walk) || m.k == 0 || m.m > MOST_EXTENT || m.n > MOST_EXTENT)
    return hx_refuse(call, "body: need some elements, and not too many");
  status = check_operands(call, row, m.k);
  if (status != HX_OK) return status;
  if ((m.k > 1 && m.k_step_x != 1) || (m.m > 1 && (m.m_step_x != m.k || m.m_step_out != m.n)))
    return hx_refuse(call, "body: need rows without gaps");
  if ((m.k > 1 && m.k_step_y != 1) || (m.n > 1 && m.n_step_y != m.k))
    return hx_refuse(call, "body: need y with the terms of a sum innermost");
  *bytes = (uint32_t)layer_bytes(&l, &p);
  return HX_OK;
}

static int run_matmul(const hx_call* call, const hx_body_step* row, uint8_t* scratch, int axis, hx_range range) {
  hx_matmul m;
  hx_rows walk;
  layer l;
  part p;
  (void)range;
  if (axis >= 0 || !read_matmul(call, row, &l, &p, &m, &walk)) return 0;
  do {
    l.weight = (const int8_t*)walk.y;
    if (!run_layer(&l, &p, (const int8_t*)walk.x, scratch, (int32_t)row->bytes, (int8_t*)walk.out)) return 0;
  } while (hx_next_matrix(&m, &walk));
  return 1;
}

const hx_body hx_cmsis_nn_matmul = {"cmsis_nn_matmul", "q31_matmul", check_matmul, run_matmul};

/* ---- pools ---- */

static void read_pool(const hx_call* call, window* w, cmsis_nn_dims* filter) {
  hx_view x, out;
  hx_input(call, 0, &x);
  hx_output(call, 0, &out);
  hx_image_of(&x, &w->x);
  hx_image_of(&out, &w->out);
  filter->n = filter->c = filter->w = 1;
  filter->h = (int32_t)hx_attr_i(call, KERNELS + 1);
  hx_read_axis(call, WINDOW, 0, &x, &out, filter->h, &w->h);
  if (x.rank == 4) {
    filter->w = (int32_t)hx_attr_i(call, KERNELS + 2);
    hx_read_axis(call, WINDOW, 1, &x, &out, filter->w, &w->w);
  } else {
    w->w.in = w->w.out = w->w.kernel = w->w.stride = w->w.dilation = 1;
    w->w.before = w->w.after = w->w.in_step = w->w.out_step = 0;
  }
  w->batch = x.shape[0];
  w->in_channels = w->out_channels = x.shape[x.rank - 1];
}

static int32_t average_bytes(const void* of, const part* p) {
  (void)of;
  return arm_avgpool_s8_get_buffer_size(p->out.w, p->in.c);
}

static int32_t no_bytes(const void* of, const part* p) {
  (void)of;
  (void)p;
  return 0;
}

static hx_status check_pool(const hx_call* call, int32_t (*bytes_of)(const void*, const part*), uint32_t* bytes) {
  window w;
  cmsis_nn_dims filter;
  hx_status status;
  if (!is_int8(call, 0) || !is_int8(call, 1)) return hx_refuse(call, "body: need int8");
  read_pool(call, &w, &filter);
  if (w.h.dilation != 1 || w.w.dilation != 1) return hx_refuse(call, "body: need windows without gaps");
  status = check_window(call, &w);
  if (status == HX_OK) *bytes = most_bytes(&w, 0, bytes_of);
  return status;
}

static int run_pool(const hx_call* call, const hx_body_step* row, uint8_t* scratch, int axis, hx_range range,
                    int mean) {
  hx_range images, rows;
  cmsis_nn_dims filter;
  cmsis_nn_context context;
  cmsis_nn_pool_params params;
  window w;
  part p;
  size_t room;
  int32_t n;
  read_pool(call, &w, &filter);
  if (!find_ranges(&w, axis, range, &images, &rows) || !find_part(&w, rows, &p)) return 0;
  context.buf = scratch;
  context.size = mean ? average_bytes(0, &p) : 0;
  if (context.size < 0 || (uint32_t)context.size > row->bytes) return 0;
  room = behind((uint32_t)context.size);
  params.stride = p.stride;
  params.padding = p.padding;
  params.activation.min = -128;
  params.activation.max = 127;
  for (n = images.begin; n < images.end; ++n) {
    const int8_t* x = rows_of(&w.x, n, p.rows, scratch ? scratch + room : 0, room < row->bytes ? row->bytes - room : 0);
    int8_t* to = out_of(&w, n, rows);
    if (!x || (mean ? arm_avgpool_s8 : arm_max_pool_s8)(&context, &params, &p.in, x, &filter, &p.out, to) !=
                  ARM_CMSIS_NN_SUCCESS)
      return 0;
  }
  return 1;
}

static hx_status check_average(const hx_call* call, const hx_body_step* row, uint32_t* bytes) {
  (void)row;
  return check_pool(call, average_bytes, bytes);
}

static hx_status check_maximum(const hx_call* call, const hx_body_step* row, uint32_t* bytes) {
  (void)row;
  return check_pool(call, no_bytes, bytes);
}

static int run_average(const hx_call* call, const hx_body_step* row, uint8_t* scratch, int axis, hx_range range) {
  return run_pool(call, row, scratch, axis, range, 1);
}

static int run_maximum(const hx_call* call, const hx_body_step* row, uint8_t* scratch, int axis, hx_range range) {
  return run_pool(call, row, scratch, axis, range, 0);
}

const hx_body hx_cmsis_nn_avg_pool = {"cmsis_nn_avg_pool", "q31_avg_pool", check_average, run_average};
const hx_body hx_cmsis_nn_max_pool = {"cmsis_nn_max_pool", "max_pool", check_maximum, run_maximum};

/* ---- additions ---- */

/* Returns the number of elements in a row of axis 1, or -1 unless elements and rows are adjacent. */
static int32_t elements_of_row(const hx_view* view) {
  int32_t elements = 1, row = 1;
  int axis;
  for (axis = view->rank - 1; axis >= 0; --axis) {
    if (view->shape[axis] > 1 && view->strides[axis] != elements) return -1;
    if (axis == 0 && view->ring && view->shape[0] > 1) return -1;
    elements *= view->shape[axis];
    if (axis == 2) row = elements;
  }
  return view->rank < 2 ? elements : row;
}

static hx_status check_add(const hx_call* call, const hx_body_step* row, uint32_t* bytes) {
  hx_view x, y, out;
  (void)row;
  (void)bytes;
  if (!is_int8(call, 0) || !is_int8(call, 1) || !is_int8(call, 2)) return hx_refuse(call, "body: need int8");
  hx_input(call, 0, &x);
  hx_input(call, 1, &y);
  hx_output(call, 0, &out);
  if (!hx_same_shape(&x, &out) || !hx_same_shape(&y, &out) || elements_of_row(&x) < 0 || elements_of_row(&y) < 0 ||
      elements_of_row(&out) < 0)
    return hx_refuse(call, "body: need tensors of one shape without gaps");
  if (hx_attr_n(call, ADD_X + 1) > 0 || hx_attr_n(call, ADD_Y + 1) > 0 || hx_attr_n(call, ADD_OUTPUT + 1) > 0)
    return hx_refuse(call, "body: need shifts to the right");
  return HX_OK;
}

static int8_t* row_of(const hx_view* view, int32_t row, int32_t elements) {
  return (int8_t*)view->data + (size_t)(view->ring ? row % view->ring : row) * (size_t)elements;
}

static int run_add(const hx_call* call, const hx_body_step* row, uint8_t* scratch, int axis, hx_range range) {
  int32_t elements, zero, low, high;
  hx_view x, y, out;
  (void)row;
  (void)scratch;
  hx_input(call, 0, &x);
  hx_input(call, 1, &y);
  hx_output(call, 0, &out);
  hx_read_clamp(call, ADD_CLAMP, HX_INT8, &zero, &low, &high);
  elements = elements_of_row(&out);
  if (axis < 0) {
    range = range_of(0, 1);
    elements = hx_size(&out);
  } else if (axis != 1 || out.shape[0] != 1) {
    return 0;
  }
  return arm_elementwise_add_s8(row_of(&x, range.begin, elements), row_of(&y, range.begin, elements),
                                -hx_attr_n(call, ADD_X_ZERO), hx_attr_n(call, ADD_X), hx_attr_n(call, ADD_X + 1),
                                -hx_attr_n(call, ADD_Y_ZERO), hx_attr_n(call, ADD_Y), hx_attr_n(call, ADD_Y + 1),
                                SUM_SHIFT, row_of(&out, range.begin, elements), zero, hx_attr_n(call, ADD_OUTPUT),
                                hx_attr_n(call, ADD_OUTPUT + 1), low, high,
                                (range.end - range.begin) * elements) == ARM_CMSIS_NN_SUCCESS;
}

const hx_body hx_cmsis_nn_add = {"cmsis_nn_add", "q31_add", check_add, run_add};
