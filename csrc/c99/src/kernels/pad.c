/* pad: adds elements before and after each axis; a negative number removes elements. */
#include "../internal.h"

/* begin, end: a list each; mode: "constant" | "reflect" | "edge" | "wrap"; value */
enum { BEGIN = 0, END = HX_LIST_WORDS, MODE = 2 * HX_LIST_WORDS, VALUE };

#define MOST (1 << 29) /* most elements of an axis, and most added elements */

typedef enum mode { CONSTANT, REFLECT, EDGE, WRAP, NO_MODE } mode;

static mode mode_of(const hx_call* call) {
  static const char* const kNames[] = {"constant", "reflect", "edge", "wrap"};
  int i;
  for (i = 0; i < NO_MODE; ++i)
    if (hx_same(hx_attr_s(call, MODE), kNames[i])) break;
  return (mode)i;
}

static int32_t begin_of(const hx_call* call, int axis) { return (int32_t)hx_attr_i(call, BEGIN + 1 + (uint32_t)axis); }

HX_CHECK_FUNCTION hx_status check(const hx_call* call) {
  hx_view in, out;
  int axis;
  uint8_t element[8];
  if (call->num_inputs != 1 || !hx_input(call, 0, &in)) return hx_refuse(call, "need one input");
  hx_output(call, 0, &out);
  if (in.dtype != out.dtype || in.rank != out.rank) return hx_refuse(call, "output: need the input's dtype and rank");
  if (hx_attr_i(call, BEGIN) != in.rank || hx_attr_i(call, END) != in.rank)
    return hx_refuse(call, "begin or end: need one for each axis");
  if (out.rank == 2 && (in.ring || out.ring)) return hx_refuse(call, "got a ring of the innermost axis");
  if (!hx_is_string(call, MODE) || mode_of(call) == NO_MODE) return hx_refuse(call, "mode: got an unknown one");
  for (axis = 0; axis < in.rank; ++axis) {
    const int64_t begin = hx_attr_i(call, BEGIN + 1 + (uint32_t)axis), end = hx_attr_i(call, END + 1 + (uint32_t)axis);
    if (begin < -MOST || begin > MOST || end < -MOST || end > MOST || in.shape[axis] > MOST || out.shape[axis] > MOST ||
        in.shape[axis] + begin + end != out.shape[axis])
      return hx_refuse(call, "output: got another extent than the input's with its pads");
    if (mode_of(call) != CONSTANT && in.shape[axis] == 0 && out.shape[axis])
      return hx_refuse(call, "got no elements, need one or more to pad by");
  }
  if (mode_of(call) != CONSTANT || hx_attr_d(call, VALUE) == 0) return HX_OK;
  if ((out.dtype == HX_FP32 || hx_is_whole(out.dtype)) && hx_attr_element(call, VALUE, out.dtype, element))
    return HX_OK;
  return hx_fail(call->net, HX_UNSUPPORTED, "steps", call->step, "pad",
                 "value: need fp32, an integer dtype other than uint64 that holds the value, or 0");
}

/* Returns the input index for output index i + begin, or -1 for the constant. */
static int32_t source(mode m, int32_t i, int32_t extent) {
  int64_t period, at;
  if (i >= 0 && i < extent) return i;
  if (m == CONSTANT) return -1;
  if (m == EDGE) return i < 0 ? 0 : extent - 1;
  if (m == WRAP) return (i % extent + extent) % extent;
  if (extent == 1) return 0;
  period = 2 * ((int64_t)extent - 1);
  at = (i % period + period) % period;
  return (int32_t)(at < extent ? at : period - at);
}

static hx_range rows(const hx_call* call, hx_range out_rows) {
  hx_view in;
  hx_range r = {0, 0};
  int32_t i;
  hx_input(call, 0, &in);
  for (i = out_rows.begin; i < out_rows.end; ++i) {
    const int32_t at = source(mode_of(call), i - begin_of(call, 1), in.shape[1]);
    if (at < 0) continue;
    if (r.begin == r.end || at < r.begin) r.begin = at;
    if (at >= r.end) r.end = at + 1;
  }
  return r;
}

/* Computes one row of the innermost axis. `from` is null if the whole row is the constant. */
static void pad_row(const hx_call* call, mode m, const hx_view* in, const hx_view* out, const uint8_t* from,
                    uint8_t* to, const uint8_t* value, hx_range range) {
  const int axis = out->rank - 1;
  const int32_t begin = begin_of(call, axis);
  int32_t i;
  for (i = range.begin; i < range.end; ++i) {
    const int32_t at = from ? source(m, i - begin, in->shape[axis]) : -1;
    memcpy(to + (size_t)i * (size_t)out->strides[axis], at < 0 ? value : from + (size_t)at * (size_t)in->strides[axis],
           (size_t)out->item);
  }
}

static void run(const hx_call* call, int cut, hx_range range) {
  const mode m = mode_of(call);
  int32_t index[PLAN_MAX_RANK];
  uint8_t value[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  hx_range part[PLAN_MAX_RANK];
  hx_view in, out;
  int axis;
  hx_input(call, 0, &in);
  hx_output(call, 0, &out);
  if (hx_size(&out) == 0) return;
  if (m == CONSTANT && (out.dtype == HX_FP32 || hx_is_whole(out.dtype))) hx_attr_element(call, VALUE, out.dtype, value);
  if (out.rank == 0) {
    memcpy(out.data, in.data, (size_t)out.item);
    return;
  }
  for (axis = 0; axis < out.rank; ++axis) {
    part[axis].begin = axis == cut ? range.begin : 0;
    part[axis].end = axis == cut ? range.end : out.shape[axis];
    index[axis] = part[axis].begin;
  }
  for (;;) {
    const uint8_t* from = in.data;
    uint8_t* to = out.data;
    for (axis = 0; axis < out.rank - 1; ++axis) {
      const int32_t at = source(m, index[axis] - begin_of(call, axis), in.shape[axis]);
      const int32_t place = axis == 1 && out.ring ? index[axis] % out.ring : index[axis];
      to += (size_t)place * (size_t)out.strides[axis];
      if (from && at >= 0)
        from += (size_t)(axis == 1 && in.ring ? at % in.ring : at) * (size_t)in.strides[axis];
      else
        from = 0;
    }
    pad_row(call, m, &in, &out, from, to, value, part[axis]);
    for (axis = out.rank - 2; axis >= 0 && ++index[axis] == part[axis].end; --axis) index[axis] = part[axis].begin;
    if (axis < 0) return;
  }
}

const hx_kernel hx_kernel_pad = {"pad", VALUE + 1, HX_CUT_ALL, HX_NEEDS_ROWS, HX_CHECK(check), rows, run};
