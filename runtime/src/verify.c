/* Verifies the contents of a plan: strings, memories, tensors, ports. The steps follow in verify_steps.c. What the
 * host's reader checks (csrc/plan/verify.cpp) is checked here too; docs/runtime.md says what is not. */
#include "internal.h"

hx_status hx_verify_steps(hx_net* net);

static const uint8_t* row_at(const hx_net* net, int section, uint32_t row, size_t bytes) {
  return net->sections[section].data + row * bytes;
}

static hx_status bad(hx_net* net, const char* where, uint32_t row, const char* what) {
  return hx_fail(net, HX_BAD_PLAN, where, row, "", what);
}

/* What every row has to keep to, whatever the others say: fields of 4 bytes are rows of a section (strings: bytes of
 * it), those of 8 bytes whole numbers of less than 2^31. From then on only their lower half is read. */
enum { NUMBER = HX_SECTIONS };

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
    {HX_LOOPS, offsetof(PlanLoop, first_step), 1, HX_STEPS},
    {HX_LOOPS, offsetof(PlanLoop, trips), 2, NUMBER},
    {HX_INPUTS, offsetof(PlanPort, name), 2, HX_STRINGS},
    {HX_INPUTS, offsetof(PlanPort, tensor), 1, HX_TENSORS},
    {HX_OUTPUTS, offsetof(PlanPort, name), 2, HX_STRINGS},
    {HX_OUTPUTS, offsetof(PlanPort, tensor), 1, HX_TENSORS},
};

static hx_status check_rules(hx_net* net) {
  uint32_t rule, row, i;
  for (rule = 0; rule < sizeof kRules / sizeof kRules[0]; ++rule) {
    const uint32_t section = kRules[rule].section, holds = kRules[rule].holds, rows = net->sections[section].rows,
                   row_bytes = rows ? net->sections[section].bytes / rows : 0;
    const uint32_t most = holds == NUMBER ? (uint32_t)INT_MAX + 1 : net->sections[holds].rows;
    for (row = 0; row < rows; ++row)
      for (i = 0; i < kRules[rule].fields; ++i) {
        const uint8_t* field =
            net->sections[section].data + row * row_bytes + kRules[rule].field + i * (holds == NUMBER ? 8 : 4);
        if (hx_u32(field) >= most || (holds == NUMBER && hx_u32(field + 4)))
          return bad(net, hx_section_name(section), row,
                     holds == NUMBER ? "got a number that is negative or 2^31 or more"
                                     : "got a row that its section has not got");
      }
  }
  return HX_OK;
}

static const char* string_of(const hx_net* net, const uint8_t* field) { return hx_string(net, hx_u32(field)); }

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
    if (length == 0 || length > bytes - i) return bad(net, "strings", i, "need UTF-8");
    for (k = 1; k < length; ++k) {
      if (text[i + k] >> 6 != 2) return bad(net, "strings", i, "need UTF-8");
      code = code << 6 | (text[i + k] & 0x3f);
    }
    if (code < kSmallest[length] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
      return bad(net, "strings", i, "need UTF-8");
    i += length;
  }
  return HX_OK;
}

static hx_status check_space(hx_net* net, uint32_t i, uint64_t* weights, uint64_t* state, int* any_weights) {
  const uint8_t* row = row_at(net, HX_SPACES, i, sizeof(PlanSpace));
  const uint32_t bytes = hx_u32(row + offsetof(PlanSpace, bytes)), limit = hx_u32(row + offsetof(PlanSpace, limit)),
                 alignment = hx_u32(row + offsetof(PlanSpace, alignment));
  const char *kind, *name;
  uint32_t other;
  int is_weights, is_port;
  kind = string_of(net, row + offsetof(PlanSpace, kind));
  name = string_of(net, row + offsetof(PlanSpace, name));
  is_weights = hx_same(kind, "weights");
  is_port = hx_same(kind, "port");
  if (!is_weights && !is_port && !hx_same(kind, "arena") && !hx_same(kind, "state") && !hx_same(kind, "param"))
    return hx_fail(net, HX_BAD_PLAN, "spaces", i, kind, "kind: need weights, arena, state, param or port");
  if (limit && bytes > limit) return hx_fail(net, HX_BAD_PLAN, "spaces", i, name, "more bytes than its limit");
  if (alignment == 0 || (alignment & (alignment - 1)) || alignment > PLAN_MOST_ALIGNMENT)
    return hx_fail(net, HX_BAD_PLAN, "spaces", i, name, "alignment: need a power of two up to 4096");
  if (is_port) return HX_OK;
  for (other = 0; other < i; ++other) {
    const uint8_t* before = row_at(net, HX_SPACES, other, sizeof(PlanSpace));
    if (!hx_same(string_of(net, before + offsetof(PlanSpace, kind)), "port") &&
        hx_same(string_of(net, before + offsetof(PlanSpace, name)), name))
      return hx_fail(net, HX_BAD_PLAN, "spaces", i, name, "got a second memory of the name");
  }
  if (is_weights) {
    if (*any_weights) return bad(net, "spaces", i, "kind: got a second 'weights'");
    *any_weights = 1;
    *weights += bytes;
  } else if (!hx_same(kind, "arena")) {
    *state += bytes;
  }
  return HX_OK;
}

static hx_status check_spaces(hx_net* net, uint64_t* total) {
  uint64_t weights = 0, state = 0;
  int any_weights = 0;
  uint32_t i;
  *total = 0;
  for (i = 0; i < net->sections[HX_SPACES].rows; ++i) {
    const hx_status status = check_space(net, i, &weights, &state, &any_weights);
    if (status != HX_OK) return status;
    *total += hx_u32(row_at(net, HX_SPACES, i, sizeof(PlanSpace)) + offsetof(PlanSpace, bytes));
  }
  if (net->sections[HX_WEIGHTS].bytes != weights &&
      (net->sections[HX_BLOCKS].rows == 0 || net->sections[HX_WEIGHTS].bytes > weights))
    return bad(net, "weights", 0, "need the bytes of their space");
  if (net->sections[HX_STATE].bytes > state) return bad(net, "state", 0, "need at most the bytes of its spaces");
  return HX_OK;
}

static hx_status check_numerics(hx_net* net) {
  uint32_t i;
  for (i = 0; i < net->sections[HX_NUMERICS].rows; ++i) {
    const uint8_t* row = row_at(net, HX_NUMERICS, i, sizeof(PlanNumerics));
    const char* family = string_of(net, row + offsetof(PlanNumerics, family));
    if (!hx_same(family, "ieee")) return hx_fail(net, HX_UNSUPPORTED, "numerics", i, family, "need the family ieee");
    if (hx_u32(row + offsetof(PlanNumerics, bytes)) || hx_u32(row + offsetof(PlanNumerics, offset)) % 8 ||
        hx_u32(row + offsetof(PlanNumerics, offset)) > net->sections[HX_ATTRS].bytes)
      return bad(net, "numerics", i, "need no parameters");
  }
  return HX_OK;
}

static hx_status check_tensor(hx_net* net, uint32_t i, uint32_t most) {
  const uint8_t* row = row_at(net, HX_TENSORS, i, sizeof(PlanTensorRow));
  const uint8_t* dims = hx_dims(net, i);
  const uint32_t space = hx_u32(row + offsetof(PlanTensorRow, space)),
                 ring = hx_u32(row + offsetof(PlanTensorRow, ring)),
                 offset = hx_u32(row + offsetof(PlanTensorRow, offset)), rank = hx_u32(dims),
                 words = net->sections[HX_DIMS].rows - hx_u32(row + offsetof(PlanTensorRow, dims));
  uint32_t elements = 1, last, item, space_bytes, extent, axis;
  hx_view view;
  if (rank > PLAN_MAX_RANK) return bad(net, "tensors", i, "rank: need at most 8");
  if (2 * rank > words - 1) return bad(net, "tensors", i, "dims: need them inside the section");
  hx_tensor(net, i, &view);
  if (view.dtype == HX_DTYPES)
    return hx_fail(net, HX_UNSUPPORTED, "tensors", i, string_of(net, row + offsetof(PlanTensorRow, dtype)),
                   "dtype: this runtime has not got it");
  last = item = (uint32_t)view.item;
  for (axis = 0; axis < rank; ++axis) {
    const uint32_t extent_of = hx_u32(dims + 8 * (1 + axis)), stride = hx_u32(dims + 8 * (1 + rank + axis));
    if (stride % item) return bad(net, "tensors", i, "strides: need whole elements");
    if (extent_of == 0) continue;
    if (extent_of > most / elements) return bad(net, "tensors", i, "shape: got too many elements");
    elements *= extent_of;
    if (stride && extent_of - 1 > (INT_MAX - last) / stride)
      return bad(net, "tensors", i, "strides: got too many bytes");
    last += (extent_of - 1) * stride;
  }
  if (ring && (rank < 2 || ring > (uint32_t)view.shape[1]))
    return bad(net, "tensors", i, "ring: need at most the rows of axis 1");
  if (offset % item) return bad(net, "tensors", i, "offset: need whole elements");
  space_bytes = hx_u32(row_at(net, HX_SPACES, space, sizeof(PlanSpace)) + offsetof(PlanSpace, bytes));
  extent = hx_extent(&view);
  if (offset > space_bytes || extent > space_bytes - offset)
    return bad(net, "tensors", i, "bytes: need them inside their space");
  return HX_OK;
}

static int is_dense(const hx_view* view) {
  int32_t stride = view->item;
  int axis;
  for (axis = 0; axis < view->rank; ++axis)
    if (view->shape[axis] == 0) return 1;
  for (axis = view->rank - 1; axis >= 0; --axis) {
    if (view->shape[axis] != 1 && view->strides[axis] != stride) return 0;
    stride *= view->shape[axis];
  }
  return 1;
}

static hx_status check_port(hx_net* net, int section, const char* where, uint32_t i) {
  const uint8_t* row = row_at(net, section, i, sizeof(PlanPort));
  const uint32_t tensor = hx_u32(row + offsetof(PlanPort, tensor));
  const uint8_t *tensor_row, *space;
  const char* name;
  uint32_t other;
  int both;
  hx_view view;
  name = string_of(net, row + offsetof(PlanPort, name));
  for (other = 0; other < i; ++other)
    if (hx_same(name, string_of(net, row_at(net, section, other, sizeof(PlanPort)))))
      return hx_fail(net, HX_BAD_PLAN, where, i, name, "got the name of another port");
  if (!*name) return bad(net, where, i, "need a name");
  if (hx_u32(row + offsetof(PlanPort, length)))
    return hx_fail(net, HX_UNSUPPORTED, where, i, name, "a length that is known when it has been computed");
  if (hx_u32(row + offsetof(PlanPort, axis)) || hx_u32(row + offsetof(PlanPort, streamed)) > 1)
    return bad(net, where, i, "axis: need 0; streamed: need 0 or 1");
  hx_tensor(net, tensor, &view);
  tensor_row = row_at(net, HX_TENSORS, tensor, sizeof(PlanTensorRow));
  space = row_at(net, HX_SPACES, hx_u32(tensor_row + offsetof(PlanTensorRow, space)), sizeof(PlanSpace));
  if (!hx_same(string_of(net, space + offsetof(PlanSpace, kind)), "port"))
    return hx_fail(net, HX_BAD_PLAN, where, i, name, "got a tensor in no port");
  if (hx_u32(tensor_row + offsetof(PlanTensorRow, offset)) || view.ring || !is_dense(&view) ||
      hx_extent(&view) != hx_u32(space + offsetof(PlanSpace, bytes)))
    return hx_fail(net, HX_BAD_PLAN, where, i, name, "need a dense tensor that fills its space");
  for (both = HX_INPUTS; both <= section; ++both)
    for (other = 0; other < (both == section ? i : net->sections[both].rows); ++other)
      if ((both == HX_INPUTS ? hx_input_space(net, other) : hx_output_space(net, other)) ==
          hx_u32(tensor_row + offsetof(PlanTensorRow, space)))
        return hx_fail(net, HX_BAD_PLAN, where, i, name, "got the space of another port");
  return HX_OK;
}

static hx_status check_ports(hx_net* net) {
  uint32_t i, ports = net->sections[HX_INPUTS].rows + net->sections[HX_OUTPUTS].rows, spaces = 0;
  hx_status status = HX_OK;
  for (i = 0; i < net->sections[HX_INPUTS].rows && status == HX_OK; ++i)
    status = check_port(net, HX_INPUTS, "inputs", i);
  for (i = 0; i < net->sections[HX_OUTPUTS].rows && status == HX_OK; ++i)
    status = check_port(net, HX_OUTPUTS, "outputs", i);
  for (i = 0; i < net->sections[HX_SPACES].rows; ++i)
    spaces += (uint32_t)hx_same(
        string_of(net, row_at(net, HX_SPACES, i, sizeof(PlanSpace)) + offsetof(PlanSpace, kind)), "port");
  if (status == HX_OK && spaces != ports) return bad(net, "spaces", 0, "got a port space without a port");
  return status;
}

hx_status hx_verify(hx_net* net, uint32_t num_memory) {
  uint64_t total = 0, most;
  uint32_t i;
  hx_status status = check_strings(net);
  if (status == HX_OK) status = check_rules(net);
  if (status == HX_OK) status = check_spaces(net, &total);
  if (status == HX_OK) status = hx_place_memory(net, num_memory);
  if (status == HX_OK) status = check_numerics(net);
  /* A broadcast view may be larger than memory, but not by so much that walking over it takes long. */
  most = total > (1u << 23) ? 8 * total : 1u << 26;
  if (most > INT_MAX) most = INT_MAX;
  for (i = 0; i < net->sections[HX_TENSORS].rows && status == HX_OK; ++i) status = check_tensor(net, i, (uint32_t)most);
  if (status == HX_OK) status = check_ports(net);
  if (status == HX_OK) status = hx_verify_steps(net);
  return status;
}
