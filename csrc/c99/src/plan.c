/* Reads rows of a plan's tables, and has the public functions about a loaded plan. These functions check nothing,
 * because verify.c has checked the plan. */
#include "internal.h"

const char* hx_string(const hx_net* net, uint64_t offset) {
  return (const char*)net->sections[HX_STRINGS].data + (size_t)offset;
}

int hx_same(const char* a, const char* b) {
  for (; *a == *b; ++a, ++b)
    if (*a == 0) return 1;
  return 0;
}

hx_status(hx_fail)(hx_net* net, hx_status status, const char* where, uint32_t row, const char* name, const char* what) {
  net->error.where = where;
  net->error.row = row;
  net->error.name = name;
  net->error.what = what;
  return status;
}

hx_status(hx_bad_step)(hx_net* net, uint32_t step, const char* what) {
  return (hx_fail)(net, HX_BAD_PLAN, "steps", step, hx_string(net, HX_FIELD(hx_step_row(net, step), PlanStep, kernel)),
                   what);
}

int hx_index_of(const char* name, const char* names) {
  int i;
  for (i = 0; *names && !hx_same(name, names); ++i)
    while (*names++) {
    }
  return i;
}

static const uint8_t* tensor_row(const hx_net* net, uint32_t id) {
  return hx_row(net, HX_TENSORS, id, sizeof(PlanTensorRow));
}

const uint8_t* hx_dims(const hx_net* net, uint32_t id) {
  return hx_row(net, HX_DIMS, HX_FIELD(tensor_row(net, id), PlanTensorRow, dims), 8);
}

hx_kind hx_kind_of(const hx_net* net, uint32_t space) {
  static const char kKinds[] = "weights\0arena\0state\0param\0port\0";
  return (hx_kind)hx_index_of(hx_string(net, HX_FIELD(hx_space_row(net, space), PlanSpace, kind)), kKinds);
}

void hx_tensor(const hx_net* net, uint32_t id, hx_view* view) {
  static const char kDtypes[] = "bool\0int8\0uint8\0int16\0uint16\0fp16\0int32\0uint32\0fp32\0int64\0uint64\0fp64\0";
  static const uint8_t kItems[HX_DTYPES + 1] = {1, 1, 1, 2, 2, 2, 4, 4, 4, 8, 8, 8, 0};
  const uint8_t *row = tensor_row(net, id), *dims = hx_dims(net, id);
  const hx_memory* memory;
  int axis;
  memset(view, 0, sizeof *view);
  view->space = HX_FIELD(row, PlanTensorRow, space);
  view->offset = HX_FIELD(row, PlanTensorRow, offset);
  view->dtype = (hx_dtype)hx_index_of(hx_string(net, HX_FIELD(row, PlanTensorRow, dtype)), kDtypes);
  view->item = kItems[view->dtype];
  view->rank = hx_signed(hx_u32(dims));
  view->ring = hx_signed(HX_FIELD(row, PlanTensorRow, ring));
  memory = &net->memory[view->space];
  if (memory->data) view->data = (uint8_t*)((uintptr_t)memory->data + view->offset);
  for (axis = 0; axis < view->rank; ++axis) {
    view->shape[axis] = hx_signed(hx_u32(dims + 8 * (1 + axis)));
    if (view->shape[axis] > 1) /* the stride of an axis of extent 1 has no meaning */
      view->strides[axis] = hx_signed(hx_u32(dims + 8 * (1 + view->rank + axis)));
  }
}

int hx_operand(const hx_call* call, uint32_t i, hx_view* view) {
  const hx_net* net = call->net;
  uint32_t id;
  if (i >= call->num_inputs + call->num_outputs) return 0;
  id = hx_operand_id(net, call->operands + i);
  if (id == PLAN_ABSENT) return 0;
  hx_tensor(net, id, view);
#if !defined(HX_NO_BLOCKS)
  if (net->sections[HX_BLOCKS].rows &&
      view->space == net->weights) { /* packed weights are read where they are unpacked */
    const uint32_t bytes = hx_extent(view);
    if (view->offset + bytes > net->sections[HX_WEIGHTS].bytes)
      view->data = hx_unpacked(net, call->step, view->offset, bytes);
  }
#endif
  return 1;
}

int hx_input(const hx_call* call, uint32_t i, hx_view* view) {
  return i < call->num_inputs && hx_operand(call, i, view);
}

int hx_views(const hx_call* call, uint32_t inputs, hx_view* views) {
  uint32_t i;
  if (call->num_inputs < inputs) return 0;
  for (i = 0; i < inputs; ++i, ++views)
    if (!hx_operand(call, i, views)) return 0;
  return hx_output(call, 0, views);
}

int hx_operands(const hx_call* call, uint32_t inputs, hx_view* views) {
  return call->num_inputs == inputs && hx_views(call, inputs, views);
}

uint32_t hx_extent(const hx_view* view) {
  uint32_t last = (uint32_t)view->item;
  int axis;
  for (axis = 0; axis < view->rank; ++axis) {
    const int32_t rows = axis == 1 && view->ring ? view->ring : view->shape[axis];
    if (view->shape[axis] == 0) return 0;
    last += (uint32_t)(rows - 1) * (uint32_t)view->strides[axis];
  }
  return last;
}

int32_t hx_size(const hx_view* view) {
  int32_t size = 1;
  int axis;
  for (axis = 0; axis < view->rank; ++axis) size *= view->shape[axis];
  return size;
}

const hx_kernel* hx_find_kernel(const hx_net* net, const char* name, const hx_activation** activation) {
  const hx_kernel* const* kernel;
  const hx_kernel* unary = 0;
  *activation = 0;
  for (kernel = net->kernels; *kernel; ++kernel) {
    if (hx_same((*kernel)->name, name)) return *kernel;
    if (hx_same((*kernel)->name, "unary")) unary = *kernel;
  }
  if (unary) *activation = hx_find_activation(net, name);
  return *activation ? unary : 0;
}

const hx_activation* hx_find_activation(const hx_net* net, const char* name) {
  const hx_activation* const* activation;
  for (activation = net->activations; HX_ACTIVATIONS && *activation; ++activation)
    if (hx_same((*activation)->name, name)) return *activation;
  return 0;
}

void hx_step(hx_net* net, uint32_t index, hx_call* call) {
  const uint8_t* row = hx_step_row(net, index);
  call->net = net;
  call->step = index;
  call->operands = HX_FIELD(row, PlanStep, operands);
  call->num_inputs = HX_FIELD(row, PlanStep, num_inputs);
  call->num_outputs = HX_FIELD(row, PlanStep, num_outputs);
  call->attrs = hx_row(net, HX_ATTRS, HX_FIELD(row, PlanStep, attrs), 1);
  call->kernel = hx_find_kernel(net, hx_string(net, HX_FIELD(row, PlanStep, kernel)), &call->activation);
}

int32_t hx_attr_n(const hx_call* call, uint32_t i) {
  const uint32_t low = hx_u32(call->attrs + 8 * i);
  return hx_u32(call->attrs + 8 * i + 4) == (uint32_t)0 - (low >> 31) ? hx_signed(low) : INT32_MIN;
}

int hx_is_string(const hx_call* call, uint32_t i) {
  return hx_u64(call->attrs + 8 * i) < call->net->sections[HX_STRINGS].bytes;
}

static const uint8_t* port_row(const hx_net* net, int section, uint32_t i) {
  return hx_row(net, section, i, sizeof(PlanPort));
}

uint32_t hx_port_space(const hx_net* net, int section, uint32_t i) {
  return HX_FIELD(tensor_row(net, HX_FIELD(port_row(net, section, i), PlanPort, tensor)), PlanTensorRow, space);
}

void hx_port(const hx_net* net, int section, uint32_t i, hx_view* view) {
  hx_tensor(net, HX_FIELD(port_row(net, section, i), PlanPort, tensor), view);
}

const char* hx_port_name(const hx_net* net, int section, uint32_t i) {
  return hx_string(net, HX_FIELD(port_row(net, section, i), PlanPort, name));
}

uint32_t hx_input_space(const hx_net* net, uint32_t input) { return hx_port_space(net, HX_INPUTS, input); }
uint32_t hx_output_space(const hx_net* net, uint32_t output) { return hx_port_space(net, HX_OUTPUTS, output); }
const char* hx_input_name(const hx_net* net, uint32_t input) { return hx_port_name(net, HX_INPUTS, input); }
const char* hx_output_name(const hx_net* net, uint32_t output) { return hx_port_name(net, HX_OUTPUTS, output); }

void hx_reset_state(hx_net* net) {
  const uint8_t* from = net->sections[HX_STATE].data;
  size_t left = net->sections[HX_STATE].bytes;
  uint32_t i;
  for (i = 0; HX_STATES && i < net->sections[HX_SPACES].rows; ++i) {
    const hx_kind kind = hx_kind_of(net, i);
    const size_t bytes = HX_FIELD(hx_space_row(net, i), PlanSpace, bytes), mine = bytes < left ? bytes : left;
    if (bytes == 0 || (kind != HX_STATE_SPACE && kind != HX_PARAM_SPACE)) continue;
    memset(net->memory[i].data, 0, bytes);
    memcpy(net->memory[i].data, from, mine);
    from += mine;
    left -= mine;
  }
}
