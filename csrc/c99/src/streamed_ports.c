/* Inputs and outputs whose rows a hook writes or reads, in place of the plan's copy of the port. The rows lie in an
 * arena, in the copy's other operand. */
#include "internal.h"

#if !defined(HX_NO_STREAMED_PORTS)

int hx_is_streamed(const hx_net* net, int section, uint32_t i) {
  return hx_u32(net->sections[section].data + i * sizeof(PlanPort) + offsetof(PlanPort, streamed)) != 0;
}

/* Returns the row of the streamed port that operand i of a call is, or PLAN_ABSENT. */
static uint32_t port_of(const hx_call* call, uint32_t i, int section) {
  const hx_net* net = call->net;
  const uint32_t id = hx_u32(net->sections[HX_OPERANDS].data + 4 * (size_t)(call->operands + i));
  uint32_t space, port;
  if (id == PLAN_ABSENT) return PLAN_ABSENT;
  space = hx_u32(net->sections[HX_TENSORS].data + id * sizeof(PlanTensorRow) + offsetof(PlanTensorRow, space));
  for (port = 0; port < net->sections[section].rows; ++port)
    if (hx_is_streamed(net, section, port) &&
        (section == HX_INPUTS ? hx_input_space(net, port) : hx_output_space(net, port)) == space)
      return port;
  return PLAN_ABSENT;
}

/* The copy of a streamed port has one input and one output; one of the two is the port. */
static uint32_t streamed_port(const hx_call* call, int* section) {
  uint32_t port = call->num_inputs ? port_of(call, 0, *section = HX_INPUTS) : PLAN_ABSENT;
  if (port == PLAN_ABSENT) port = port_of(call, call->num_inputs, *section = HX_OUTPUTS);
  return port;
}

int hx_streams(const hx_call* call) {
  int section;
  return streamed_port(call, &section) != PLAN_ABSENT;
}

int hx_move_rows(const hx_call* call, int axis, hx_range range) {
  const hx_hooks* hooks = &call->net->hooks;
  hx_view rows;
  int section, stopped = 0;
  const uint32_t port = streamed_port(call, &section);
  hx_operand(call, section == HX_INPUTS ? 1 : 0, &rows);
  if (axis < 0) {
    range.begin = 0;
    range.end = rows.rank > 1 && rows.shape[0] == 1 ? rows.shape[1] : 1;
  }
  while (range.begin < range.end && !stopped) {
    hx_range part;
    uint8_t* at;
    part.begin = range.begin;
    part.end = axis < 0 ? range.end : hx_turn_end(call, range);
    at = rows.data;
    if (axis >= 0) at += (size_t)(rows.ring ? part.begin % rows.ring : part.begin) * (size_t)rows.strides[1];
    stopped = section == HX_INPUTS ? hooks->input(hooks->context, port, part.begin, part.end, at)
                                   : hooks->output(hooks->context, port, part.begin, part.end, at);
    range.begin = part.end;
  }
  return stopped;
}

/* True if each row of axis 1 is dense, and if axis 0 has several entries the whole tensor is dense. */
static int lies_in_rows(const hx_view* view) {
  int32_t stride = view->item;
  int axis;
  for (axis = view->rank - 1; axis >= 0; --axis) {
    if (view->shape[axis] > 1 && view->strides[axis] != stride) return 0;
    stride *= view->shape[axis];
  }
  return !view->ring || view->shape[0] == 1;
}

/* Checks that the runs of the step visit each row once, in order. */
static int is_in_order(const hx_net* net, uint32_t step, int32_t num_rows) {
  hx_runs runs;
  hx_range range;
  uint32_t at;
  int axis;
  int32_t done = 0;
  memset(&runs, 0, sizeof runs);
  while (hx_next_run(net, &runs, &at, &axis, &range)) {
    if (at != step) continue;
    if (axis < 0) return 1;
    if (range.begin != done) return 0;
    done = range.end;
  }
  return done == num_rows;
}

static hx_status check_step(hx_net* net, uint32_t step, int section, uint32_t port, uint32_t* users) {
  const int axis =
      hx_signed(hx_u32(net->sections[HX_STEPS].data + step * sizeof(PlanStep) + offsetof(PlanStep, cut_axis)));
  hx_call call;
  hx_view in, out;
  uint32_t i, id, space;
  hx_step(net, step, &call);
  for (i = 0; i < call.num_inputs + call.num_outputs; ++i)
    if (port_of(&call, i, section) == port) break;
  if (i == call.num_inputs + call.num_outputs) return HX_OK;
  if ((*users)++ || !hx_same(call.kernel->name, "copy") || call.num_inputs != 1 || !hx_operand(&call, 0, &in))
    return hx_refuse(&call, "touches a streamed port: need one step, a copy");
  hx_output(&call, 0, &out);
  id = hx_u32(net->sections[HX_OPERANDS].data + 4 * (size_t)(call.operands + (section == HX_INPUTS)));
  space = hx_u32(net->sections[HX_TENSORS].data + id * sizeof(PlanTensorRow) + offsetof(PlanTensorRow, space));
  if (!hx_same(
          hx_string(net, hx_u32(net->sections[HX_SPACES].data + space * sizeof(PlanSpace) + offsetof(PlanSpace, kind))),
          "arena") ||
      !lies_in_rows(section == HX_INPUTS ? &out : &in))
    return hx_refuse(&call, "copies a streamed port: need its rows without gaps in an arena");
  if (!hx_same_shape(&in, &out)) return hx_refuse(&call, "copies a streamed port: need one element for one");
  if ((axis != -1 && (axis != 1 || out.shape[0] != 1)) || !is_in_order(net, step, axis == 1 ? out.shape[1] : 0))
    return hx_refuse(&call, "copies a streamed port: need its rows in order, each once");
  return HX_OK;
}

hx_status hx_verify_streamed_ports(hx_net* net) {
  uint32_t port, step;
  int section;
  for (section = HX_INPUTS; section <= HX_OUTPUTS; ++section)
    for (port = 0; port < net->sections[section].rows; ++port) {
      uint32_t users = 0;
      if (!hx_is_streamed(net, section, port)) continue;
      for (step = 0; step < net->sections[HX_STEPS].rows; ++step) {
        const hx_status status = check_step(net, step, section, port, &users);
        if (status != HX_OK) return status;
      }
    }
  return HX_OK;
}

#endif
