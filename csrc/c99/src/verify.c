/* Verifies the contents of a plan: strings, memories, tensors, ports. verify_steps.c verifies the steps. verify.c and
 * verify_steps.c check the same rules as the host's reader (csrc/plan/verify.cpp); docs/runtime.md lists the
 * exceptions. */
#include "internal.h"

static hx_status bad(hx_net* net, const char* where, uint32_t row, const char* what) {
  return hx_fail(net, HX_BAD_PLAN, where, row, "", what);
}

/* Rules for single rows. A field of 4 bytes is a row of a section, or an offset in the section of strings. A field
 * of 8 bytes is a number that has to fit in 32 bits, because later code reads only its lower half. */
enum { NUMBER = HX_SECTIONS /* not negative */, SIGNED };

static const struct {
  uint8_t section, field, fields, holds;
} kRules[] = {
    {HX_SPACES, offsetof(PlanSpace, name), 2, HX_STRINGS},
    {HX_SPACES, offsetof(PlanSpace, bytes), 3, NUMBER},
    {HX_TENSORS, offsetof(PlanTensorRow, name), 3, HX_STRINGS},
    {HX_TENSORS, offsetof(PlanTensorRow, space), 1, HX_SPACES},
    {HX_TENSORS, offsetof(PlanTensorRow, offset), 1, NUMBER},
    {HX_TENSORS, offsetof(PlanTensorRow, dims), 1, HX_DIMS},
    {HX_DIMS, 0, 1, NUMBER},
    {HX_NUMERICS, offsetof(PlanNumerics, name), 2, HX_STRINGS},
    {HX_NUMERICS, offsetof(PlanNumerics, offset), 2, NUMBER},
    {HX_STEPS, offsetof(PlanStep, kernel), 1, HX_STRINGS},
    {HX_STEPS, offsetof(PlanStep, numerics), 1, HX_NUMERICS},
    {HX_STEPS, offsetof(PlanStep, device), 2, HX_STRINGS},
    {HX_STEPS, offsetof(PlanStep, attrs), 1, NUMBER},
    {HX_STEPS, offsetof(PlanStep, cut_axis), 3, SIGNED},
    {HX_LOOPS, offsetof(PlanLoop, first_step), 1, HX_STEPS},
    {HX_LOOPS, offsetof(PlanLoop, trips), 2, NUMBER},
    {HX_MOVES, 0, 1, SIGNED},
    {HX_INPUTS, offsetof(PlanPort, name), 2, HX_STRINGS},
    {HX_INPUTS, offsetof(PlanPort, tensor), 1, HX_TENSORS},
    {HX_OUTPUTS, offsetof(PlanPort, name), 2, HX_STRINGS},
    {HX_OUTPUTS, offsetof(PlanPort, tensor), 1, HX_TENSORS},
};

static int keeps_to(const hx_net* net, const uint8_t* field, uint32_t holds) {
  const uint32_t low = hx_u32(field), sign = low >> 31;
  if (holds < HX_SECTIONS) return low < net->sections[holds].rows;
  return hx_u32(field + 4) == (uint32_t)0 - sign && !(holds == NUMBER && sign);
}

static hx_status check_rules(hx_net* net) {
  uint32_t rule, row, i;
  for (rule = 0; rule < sizeof kRules / sizeof kRules[0]; ++rule) {
    const hx_section* section = &net->sections[kRules[rule].section];
    const uint32_t holds = kRules[rule].holds;
    for (row = 0; row < section->rows; ++row) {
      const uint8_t* field = section->data + row * (section->bytes / section->rows) + kRules[rule].field;
      for (i = 0; i < kRules[rule].fields; ++i, field += holds < HX_SECTIONS ? 4 : 8)
        if (!keeps_to(net, field, holds))
          return bad(net, hx_section_name(kRules[rule].section), row,
                     holds < HX_SECTIONS ? "got a row beyond the end of its section"
                                         : "got a number that is too large or too small");
    }
  }
  return HX_OK;
}

static hx_status check_strings(hx_net* net) {
  static const uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const uint8_t* text = net->sections[HX_STRINGS].data;
  const uint32_t bytes = net->sections[HX_STRINGS].bytes;
  uint32_t i = 0;
  if (bytes == 0 || text[0] || text[bytes - 1]) return bad(net, "strings", 0, "need a zero byte first and last");
  while (i < bytes) {
    const uint32_t lead = text[i];
    const uint32_t length = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
    uint32_t code = length < 2 ? lead : lead & (0x7fu >> length), k;
    int valid = length != 0 && length <= bytes - i;
    for (k = 1; valid && k < length; ++k) {
      valid = text[i + k] >> 6 == 2;
      code = code << 6 | (text[i + k] & 0x3f);
    }
    if (!valid || code < kSmallest[length] || code > 0x10ffff || code >> 11 == 0xd800 >> 11)
      return bad(net, "strings", i, "need UTF-8");
    i += length;
  }
  return HX_OK;
}

static uint32_t sum_up_to(uint32_t most, uint32_t a, uint32_t b) { return a + b < most ? a + b : most; }

/* Sums of memory sizes: bytes of states, and of all memories. */
typedef struct totals {
  uint32_t state, all;
} totals;

static hx_status check_space(hx_net* net, uint32_t i, totals* total) {
  const uint8_t* row = hx_space_row(net, i);
  const uint32_t bytes = HX_FIELD(row, PlanSpace, bytes), limit = HX_FIELD(row, PlanSpace, limit),
                 alignment = HX_FIELD(row, PlanSpace, alignment);
  const hx_kind kind = hx_kind_of(net, i);
  const char* name = hx_string(net, HX_FIELD(row, PlanSpace, name));
  uint32_t other;
  if (kind == HX_KINDS)
    return hx_fail(net, HX_BAD_PLAN, "spaces", i, name, "kind: need weights, arena, state, param or port");
  if (net->depth && bytes && (kind == HX_STATE_SPACE || kind == HX_PARAM_SPACE))
    return hx_fail(net, HX_BAD_PLAN, "spaces", i, name, "kind: need no states in a body");
  if (!HX_STATES && bytes && (kind == HX_STATE_SPACE || kind == HX_PARAM_SPACE))
    return hx_fail(net, HX_UNSUPPORTED, "spaces", i, name, "kind: this build has no states");
  if (limit && bytes > limit) return hx_fail(net, HX_BAD_PLAN, "spaces", i, name, "more bytes than its limit");
  if (alignment == 0 || (alignment & (alignment - 1)) || alignment > PLAN_MOST_ALIGNMENT)
    return hx_fail(net, HX_BAD_PLAN, "spaces", i, name, "alignment: need a power of two up to 4096");
  total->all = sum_up_to(INT_MAX, total->all, bytes);
  if (HX_STATES && (kind == HX_STATE_SPACE || kind == HX_PARAM_SPACE))
    total->state = sum_up_to(INT_MAX, total->state, bytes);
  for (other = 0; other < i && kind != HX_PORT_SPACE; ++other) {
    const hx_kind before = hx_kind_of(net, other);
    if (before != HX_PORT_SPACE && hx_same(hx_string(net, HX_FIELD(hx_space_row(net, other), PlanSpace, name)), name))
      return hx_fail(net, HX_BAD_PLAN, "spaces", i, name, "got a second memory of the name");
    if (before == HX_WEIGHTS_SPACE && kind == before) return bad(net, "spaces", i, "kind: got a second 'weights'");
  }
  return HX_OK;
}

static hx_status check_numerics(hx_net* net) {
  uint32_t i;
  for (i = 0; i < net->sections[HX_NUMERICS].rows; ++i) {
    const uint8_t* row = hx_row(net, HX_NUMERICS, i, sizeof(PlanNumerics));
    const char* family = hx_string(net, HX_FIELD(row, PlanNumerics, family));
    const uint32_t offset = HX_FIELD(row, PlanNumerics, offset);
    if (!hx_same(family, "ieee")) return hx_fail(net, HX_UNSUPPORTED, "numerics", i, family, "need the family ieee");
    if (HX_FIELD(row, PlanNumerics, bytes) || offset % 8 || offset > net->sections[HX_ATTRS].bytes)
      return bad(net, "numerics", i, "need no parameters");
  }
  return HX_OK;
}

static hx_status check_tensor(hx_net* net, uint32_t i, uint32_t most) {
  const uint8_t *row = hx_row(net, HX_TENSORS, i, sizeof(PlanTensorRow)), *dims = hx_dims(net, i);
  const uint32_t words = net->sections[HX_DIMS].rows - HX_FIELD(row, PlanTensorRow, dims), rank = hx_u32(dims);
  uint32_t elements = 1, last, item, space_bytes, extent, axis;
  hx_view view;
  if (rank > PLAN_MAX_RANK) return bad(net, "tensors", i, "rank: need at most 8");
  if (2 * rank > words - 1) return bad(net, "tensors", i, "dims: need them inside the section");
  hx_tensor(net, i, &view);
  if (!hx_has_dtype(view.dtype))
    return hx_fail(net, HX_UNSUPPORTED, "tensors", i, hx_string(net, HX_FIELD(row, PlanTensorRow, dtype)),
                   "dtype: this build has not got it");
  last = item = (uint32_t)view.item;
  for (axis = 0; axis < rank; ++axis) {
    const uint32_t extent_of = (uint32_t)view.shape[axis], stride = hx_u32(dims + 8 * (1 + rank + axis));
    if (stride % item) return bad(net, "tensors", i, "strides: need whole elements");
    if (extent_of == 0) continue;
    if (extent_of > most / elements) return bad(net, "tensors", i, "shape: got too many elements");
    elements *= extent_of;
    if (stride && extent_of - 1 > (INT_MAX - last) / stride)
      return bad(net, "tensors", i, "strides: got too many bytes");
    last += (extent_of - 1) * stride;
  }
  if (view.ring && (rank < 2 || (uint32_t)view.ring > (uint32_t)view.shape[1]))
    return bad(net, "tensors", i, "ring: need at most the rows of axis 1");
  if (view.offset % item) return bad(net, "tensors", i, "offset: need whole elements");
  space_bytes = HX_FIELD(hx_space_row(net, view.space), PlanSpace, bytes);
  extent = hx_extent(&view);
  if (view.offset > space_bytes || extent > space_bytes - view.offset)
    return bad(net, "tensors", i, "bytes: need them inside their space");
  return HX_OK;
}

int hx_is_dense(const hx_view* view) {
  int32_t stride = view->item;
  int axis;
  if (hx_size(view) == 0) return 1;
  for (axis = view->rank - 1; axis >= 0; --axis) {
    if (view->shape[axis] != 1 && view->strides[axis] != stride) return 0;
    stride *= view->shape[axis];
  }
  return 1;
}

static hx_status check_port(hx_net* net, int section, uint32_t i) {
  const uint8_t* row = hx_row(net, section, i, sizeof(PlanPort));
  const char *name = hx_port_name(net, section, i), *where = hx_section_name((uint32_t)section);
  int both;
  hx_view view;
  if (!*name) return bad(net, where, i, "need a name");
  if (HX_FIELD(row, PlanPort, length))
    return hx_fail(net, HX_UNSUPPORTED, where, i, name, "length: this runtime needs outputs of fixed shape");
  if (HX_FIELD(row, PlanPort, axis) || HX_FIELD(row, PlanPort, streamed) > 1)
    return bad(net, where, i, "axis: need 0; streamed: need 0 or 1");
  hx_tensor(net, HX_FIELD(row, PlanPort, tensor), &view);
  if (hx_kind_of(net, view.space) != HX_PORT_SPACE)
    return hx_fail(net, HX_BAD_PLAN, where, i, name, "need a tensor in the space of a port");
  if (view.offset || view.ring || !hx_is_dense(&view) ||
      hx_extent(&view) != HX_FIELD(hx_space_row(net, view.space), PlanSpace, bytes))
    return hx_fail(net, HX_BAD_PLAN, where, i, name, "need a dense tensor that fills its space");
  for (both = HX_INPUTS; both <= section; ++both) {
    const uint32_t end = both == section ? i : net->sections[both].rows;
    uint32_t other;
    for (other = 0; other < end; ++other) {
      if (hx_port_space(net, both, other) == view.space)
        return hx_fail(net, HX_BAD_PLAN, where, i, name, "got the space of another port");
      if (both == section && hx_same(name, hx_port_name(net, both, other)))
        return hx_fail(net, HX_BAD_PLAN, where, i, name, "got the name of another port");
    }
  }
  return HX_OK;
}

static hx_status check_ports(hx_net* net) {
  uint32_t i, spaces = 0;
  int section;
  for (i = 0; i < net->sections[HX_SPACES].rows; ++i) spaces += hx_kind_of(net, i) == HX_PORT_SPACE;
  for (section = HX_INPUTS; section <= HX_OUTPUTS; ++section) {
    spaces -= net->sections[section].rows;
    for (i = 0; i < net->sections[section].rows; ++i) {
      const hx_status status = check_port(net, section, i);
      if (status != HX_OK) return status;
    }
  }
  return spaces ? bad(net, "spaces", 0, "got a port space without a port") : HX_OK;
}

hx_status hx_verify(hx_net* net) {
  totals total = {0, 0};
  uint32_t i, most;
  hx_status status = check_strings(net);
  if (status == HX_OK) status = check_rules(net);
  for (i = 0; i < net->sections[HX_SPACES].rows && status == HX_OK; ++i) status = check_space(net, i, &total);
  if (status == HX_OK) status = hx_place_memory(net);
  if (status == HX_OK) status = check_numerics(net);
  if (status != HX_OK) return status;
  most = net->weights == PLAN_ABSENT ? 0 : HX_FIELD(hx_space_row(net, net->weights), PlanSpace, bytes);
  if (net->sections[HX_WEIGHTS].bytes > most ||
      (net->sections[HX_WEIGHTS].bytes < most && net->sections[HX_BLOCKS].rows == 0))
    return bad(net, "weights", 0, "need the bytes of their space");
  if (net->sections[HX_STATE].bytes > total.state) return bad(net, "state", 0, "need at most the bytes of its spaces");
  /* A broadcast view may have more elements than memory. The limit keeps a walk over it short. */
  most = total.all <= 1u << 23 ? 1u << 26 : total.all < 1u << 28 ? 8 * total.all : INT_MAX;
  for (i = 0; i < net->sections[HX_TENSORS].rows && status == HX_OK; ++i) status = check_tensor(net, i, most);
  if (status == HX_OK) status = check_ports(net);
  if (status == HX_OK) status = hx_verify_steps(net);
  return status;
}
