/* loop: runs a body until its condition is false or the limit is reached. cond: runs one of two branches. A body is
 * a plan stored as a constant operand of the step. The body's memory is the step's last output, called the room. */
#include "../internal.h"

enum { CARRIED, LOOP_WORDS };
enum { BODY, LIMIT, CONDITION, FIRST }; /* Inputs of a loop; then carried values and captured values. */
enum { THEN, OTHERWISE, CHOICE };       /* Inputs of a cond; then the inputs of both branches. */
enum { STEP, GOING, BODY_FIRST };       /* Inputs of a loop's body; then carried and captured values as for the loop. */
enum { NEXT, RESULTS };                 /* Outputs of a loop's body: condition; carried values, rows of stacks. */

#define MOST_DEPTH 8u

static void room_of(const hx_call* call, hx_view* view) { hx_output(call, call->num_outputs - 1, view); }

static uint32_t num_ports(const hx_net* net, int section) { return net->sections[section].rows; }

/* Reports an error of a body as an error of the step that runs the body. */
static hx_status passed_on(const hx_call* call, const hx_net* net, hx_status status) {
  if (status == HX_OK || status == HX_STOPPED) return status;
  call->net->error = net->error;
  call->net->error.where = "steps";
  call->net->error.row = call->step;
  return status;
}

/* Loads the plan at input `which` into the room. *net is null if the room is too small. `verifies`: not 0 to verify
 * the plan. */
static hx_status open_body(const hx_call* call, uint32_t which, int verifies, hx_net** net) {
  hx_view file, room;
  hx_input(call, which, &file);
  room_of(call, &room);
  return hx_load_body(call->net, file.data, hx_extent(&file), room.data, hx_extent(&room), verifies, net);
}

static void set_port(const hx_net* net, int section, uint32_t i, void* data) {
  const uint32_t space = hx_port_space(net, section, i);
  net->memory[space].data = data;
  net->memory[space].bytes = HX_FIELD(hx_space_row(net, space), PlanSpace, bytes);
}

static size_t port_bytes(const hx_net* net, int section, uint32_t i) {
  return HX_FIELD(hx_space_row(net, hx_port_space(net, section, i)), PlanSpace, bytes);
}

/* Returns the address of the buffer that follows a buffer of `bytes` bytes at `at`. The room has two buffers for each
 * carried value. */
static uint8_t* after(uint8_t* at, size_t bytes) { return at + (bytes + 7) / 8 * 8; }

HX_CHECK_FUNCTION int is_number(const hx_view* view, hx_dtype dtype) {
  return hx_is(view->dtype, dtype) && view->rank == 0;
}

/* True if a port has the dtype and shape of the operand, or with `is_row` of one row of the operand. */
HX_CHECK_FUNCTION int is_port(const hx_net* net, int section, uint32_t i, const hx_view* operand, int is_row) {
  hx_view port;
  int axis;
  hx_port(net, section, i, &port);
  if (port.dtype != operand->dtype || port.rank + is_row != operand->rank || operand->ring) return 0;
  for (axis = 0; axis < port.rank; ++axis)
    if (port.shape[axis] != operand->shape[axis + is_row]) return 0;
  return hx_is_dense(operand);
}

HX_CHECK_FUNCTION hx_status check_operands(const hx_call* call, uint32_t bodies) {
  hx_view view, other;
  uint32_t i, k;
  if (call->num_inputs < FIRST || call->num_outputs < 2) return hx_refuse(call, "got too few inputs or outputs");
  if (call->net->depth >= MOST_DEPTH) return hx_refuse(call, "got more than 8 bodies in each other");
  for (i = 0; i < bodies; ++i)
    if (!hx_input(call, i, &view) || !hx_is(view.dtype, HX_UINT8) || view.rank != 1 || !hx_is_dense(&view) ||
        hx_kind_of(call->net, view.space) != HX_WEIGHTS_SPACE || !view.data)
      return hx_refuse(call, "body: need the bytes of a plan, a constant");
  room_of(call, &view);
  if (!hx_is(view.dtype, HX_UINT8) || view.rank != 1 || view.ring || !hx_is_dense(&view) ||
      hx_kind_of(call->net, view.space) != HX_ARENA_SPACE)
    return hx_refuse(call, "outputs: need a room in an arena, which compile --runtime c99 gives");
  for (i = 0; i < call->num_inputs; ++i) {
    if (!hx_input(call, i, &view)) {
      if (i >= FIRST) return hx_refuse(call, "inputs: got none in the place of a value");
      continue;
    }
    for (k = 0; k < call->num_outputs; ++k) {
      hx_output(call, k, &other);
      if (view.space == other.space && view.offset == other.offset && hx_size(&view) && hx_size(&other))
        return hx_refuse(call, "outputs: need memory of their own");
    }
  }
  return HX_OK;
}

/* True if the step's inputs from FIRST on match the body's inputs from `first` on in number, dtypes and shapes. */
HX_CHECK_FUNCTION int are_inputs(const hx_call* call, const hx_net* net, uint32_t first) {
  hx_view view;
  uint32_t i;
  if (num_ports(net, HX_INPUTS) != first + call->num_inputs - FIRST) return 0;
  for (i = FIRST; i < call->num_inputs; ++i) {
    hx_input(call, i, &view);
    if (!is_port(net, HX_INPUTS, first + i - FIRST, &view, 0)) return 0;
  }
  return 1;
}

HX_CHECK_FUNCTION int are_steps(const hx_call* call, const hx_net* net, uint32_t carried) {
  const uint32_t stacks_end = call->num_outputs - 2;
  hx_view view;
  uint32_t i;
  if (num_ports(net, HX_OUTPUTS) != call->num_outputs - 1 || !are_inputs(call, net, BODY_FIRST)) return 0;
  hx_port(net, HX_INPUTS, STEP, &view);
  if (!is_number(&view, HX_INT64)) return 0;
  hx_port(net, HX_INPUTS, GOING, &view);
  if (!is_number(&view, HX_BOOL)) return 0;
  hx_port(net, HX_OUTPUTS, NEXT, &view);
  if (!is_number(&view, HX_BOOL)) return 0;
  for (i = 0; i < stacks_end; ++i) {
    hx_output(call, i, &view);
    if (!is_port(net, HX_OUTPUTS, RESULTS + i, &view, i >= carried)) return 0;
    if (i < carried && !is_port(net, HX_INPUTS, BODY_FIRST + i, &view, 0)) return 0;
  }
  return 1;
}

HX_CHECK_FUNCTION hx_status check_loop(const hx_call* call) {
  const int32_t carried = hx_attr_n(call, CARRIED);
  hx_net* net;
  hx_view view;
  size_t bytes = 0;
  int32_t i;
  hx_status status = check_operands(call, 1);
  if (status != HX_OK) return status;
  if (carried < 0 || (uint32_t)carried > call->num_inputs - FIRST || (uint32_t)carried > call->num_outputs - 2)
    return hx_refuse(call, "carried: need at most the inputs and outputs");
  if ((hx_input(call, LIMIT, &view) && !is_number(&view, HX_INT64)) ||
      (hx_input(call, CONDITION, &view) && !is_number(&view, HX_BOOL)))
    return hx_refuse(call, "limit: need one int64; condition: need one bool");
  hx_output(call, call->num_outputs - 2, &view);
  if (!is_number(&view, HX_INT64)) return hx_refuse(call, "steps: need one int64");
  status = open_body(call, BODY, 1, &net);
  if (!net) return hx_refuse(call, "room: need more memory");
  if (status != HX_OK) return passed_on(call, net, status);
  if (!are_steps(call, net, (uint32_t)carried))
    return hx_refuse(call, "body: need the dtypes and shapes of the step's operands, without gaps");
  for (i = 0; i < carried; ++i) bytes += 2 * (port_bytes(net, HX_INPUTS, BODY_FIRST + (uint32_t)i) + 7);
  return bytes <= (size_t)(net->room_end - net->room) ? HX_OK : hx_refuse(call, "room: need more memory");
}

static void run_loop(const hx_call* call, int cut, hx_range range) {
  const uint32_t carried = (uint32_t)hx_attr_n(call, CARRIED), end = call->num_outputs - 2;
  uint8_t step_bytes[8] = {0}, going = 1, next = 1, *at;
  int64_t limit = INT64_MAX, most = INT64_MAX, step = 0;
  hx_net* net;
  hx_view view;
  uint32_t i;
  hx_status status = open_body(call, BODY, 0, &net);
  (void)cut;
  (void)range;
  if (hx_input(call, LIMIT, &view)) limit = hx_i64(view.data);
  if (hx_input(call, CONDITION, &view)) going = *view.data;
  for (i = carried; i < end; ++i) {
    hx_output(call, i, &view);
    if (view.shape[0] < most) most = view.shape[0];
  }
  set_port(net, HX_INPUTS, STEP, step_bytes);
  set_port(net, HX_INPUTS, GOING, &going);
  set_port(net, HX_OUTPUTS, NEXT, &next);
  for (i = FIRST; i < call->num_inputs; ++i) {
    hx_input(call, i, &view);
    set_port(net, HX_INPUTS, BODY_FIRST + i - FIRST, view.data);
  }
  for (; status == HX_OK && going && step < limit; ++step) {
    if (step == most) {
      status = hx_fail(net, HX_BAD_INDEX, "steps", 0, "loop", "got more steps than its stacks hold");
      break;
    }
    hx_put_whole(step_bytes, 8, step);
    for (at = net->room, i = 0; i < end; ++i) {
      const size_t bytes = port_bytes(net, HX_OUTPUTS, RESULTS + i);
      if (i < carried) {
        uint8_t* const other = after(at, bytes);
        set_port(net, HX_OUTPUTS, RESULTS + i, step % 2 ? other : at);
        at = after(other, bytes);
      } else {
        hx_output(call, i, &view);
        set_port(net, HX_OUTPUTS, RESULTS + i, view.data + (size_t)step * bytes);
      }
    }
    status = hx_run(net);
    for (i = 0; i < carried; ++i)
      set_port(net, HX_INPUTS, BODY_FIRST + i, net->memory[hx_port_space(net, HX_OUTPUTS, RESULTS + i)].data);
    going = next != 0;
    if (HX_HOOKS && call->net->hooks.yield && call->net->hooks.yield(call->net->hooks.context, call->step))
      status = HX_STOPPED;
  }
  if (status != HX_OK) {
    call->net->failed = passed_on(call, net, status);
    return;
  }
  for (i = 0; i < end; ++i) {
    const size_t bytes = port_bytes(net, HX_OUTPUTS, RESULTS + i);
    hx_output(call, i, &view);
    if (i >= carried)
      memset(view.data + (size_t)step * bytes, 0, (size_t)(view.shape[0] - step) * bytes);
    else if (bytes)
      memcpy(view.data, net->memory[hx_port_space(net, HX_INPUTS, BODY_FIRST + i)].data, bytes);
  }
  hx_output(call, end, &view);
  hx_put_whole(view.data, 8, step);
}

HX_CHECK_FUNCTION hx_status check_cond(const hx_call* call) {
  hx_status status = check_operands(call, 2);
  hx_net* net;
  hx_view view;
  uint32_t which, i;
  if (status != HX_OK) return status;
  if (!hx_input(call, CHOICE, &view) || !is_number(&view, HX_BOOL)) return hx_refuse(call, "condition: need one bool");
  for (which = THEN; which <= OTHERWISE; ++which) {
    status = open_body(call, which, 1, &net);
    if (!net) return hx_refuse(call, "room: need more memory");
    if (status != HX_OK) return passed_on(call, net, status);
    if (num_ports(net, HX_OUTPUTS) != call->num_outputs - 1 || !are_inputs(call, net, 0))
      return hx_refuse(call, "body: need the dtypes and shapes of the step's operands, without gaps");
    for (i = 0; i < call->num_outputs - 1; ++i) {
      hx_output(call, i, &view);
      if (!is_port(net, HX_OUTPUTS, i, &view, 0))
        return hx_refuse(call, "body: need the dtypes and shapes of the step's operands, without gaps");
    }
  }
  return HX_OK;
}

static void run_cond(const hx_call* call, int cut, hx_range range) {
  hx_net* net;
  hx_view view;
  uint32_t i;
  hx_status status;
  (void)cut;
  (void)range;
  hx_input(call, CHOICE, &view);
  status = open_body(call, *view.data ? THEN : OTHERWISE, 0, &net);
  for (i = FIRST; i < call->num_inputs; ++i) {
    hx_input(call, i, &view);
    set_port(net, HX_INPUTS, i - FIRST, view.data);
  }
  for (i = 0; i < call->num_outputs - 1; ++i) {
    hx_output(call, i, &view);
    set_port(net, HX_OUTPUTS, i, view.data);
  }
  if (status == HX_OK) status = hx_run(net);
  if (status != HX_OK) call->net->failed = passed_on(call, net, status);
}

const hx_kernel hx_kernel_loop = {"loop", LOOP_WORDS, 0, HX_NEEDS_WHOLE, HX_CHECK(check_loop), 0, run_loop};
const hx_kernel hx_kernel_cond = {"cond", 0, 0, HX_NEEDS_WHOLE, HX_CHECK(check_cond), 0, run_cond};
