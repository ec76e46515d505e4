/* Bodies that replace the kernels of steps, and their scratch. Bodies are verified once and looked up in each run. */
#include "internal.h"

static hx_status refuse(hx_net* net, hx_status status, const hx_body_step* row, const char* what) {
  (void)what; /* unused if error texts are left out */
  return hx_fail(net, status, "bodies", row->step, row->body ? row->body->name : "", what);
}

static uint8_t* scratch_of(const hx_net* net, const hx_body_step* row) {
  return row->bytes ? (uint8_t*)net->memory[row->space].data + row->offset : 0;
}

/* True if the scratch lies in an arena. */
static int lies_in_arena(const hx_net* net, const hx_body_step* row) {
  const uint8_t* space;
  if (row->space >= net->sections[HX_SPACES].rows) return 0;
  space = net->sections[HX_SPACES].data + row->space * sizeof(PlanSpace);
  if (!hx_same(hx_string(net, hx_u32(space + offsetof(PlanSpace, kind))), "arena")) return 0;
  return net->memory[row->space].data && row->offset <= net->memory[row->space].bytes &&
         row->bytes <= net->memory[row->space].bytes - row->offset &&
         ((uintptr_t)net->memory[row->space].data + row->offset) % HX_SCRATCH_ALIGNMENT == 0;
}

/* True if the step itself reads or writes a byte of its scratch. */
static int is_touched(const hx_call* call, const hx_body_step* row) {
  const uintptr_t begin = (uintptr_t)scratch_of(call->net, row);
  uint32_t i;
  for (i = 0; i < call->num_inputs + call->num_outputs; ++i) {
    hx_view view;
    if (hx_operand(call, i, &view) && view.data && (uintptr_t)view.data < begin + row->bytes &&
        begin < (uintptr_t)view.data + hx_extent(&view))
      return 1;
  }
  return 0;
}

static hx_status check_row(hx_net* net, const hx_body_step* row, uint32_t first) {
  hx_call call;
  uint32_t bytes = 0;
  hx_status status;
  if (row->step < first || row->step >= net->sections[HX_STEPS].rows || !row->body)
    return refuse(net, HX_BAD_PLAN, row, "need a body, and a step after the previous row's");
  hx_step(net, row->step, &call);
  if (!call.kernel || !hx_same(call.kernel->name, row->body->kernel))
    return refuse(net, HX_BAD_PLAN, row, "computes steps of another kernel");
  if (row->bytes && !lies_in_arena(net, row))
    return refuse(net, HX_NO_MEMORY, row, "scratch: need aligned bytes inside the memory of an arena");
  if (row->bytes && is_touched(&call, row))
    return refuse(net, HX_BAD_PLAN, row, "scratch: need bytes that the step does not read or write");
  status = row->body->check(&call, row, &bytes);
  if (status == HX_OK && bytes > row->bytes)
    status = refuse(net, HX_NO_MEMORY, row, "scratch: this build of the body needs more");
  return status;
}

hx_status hx_set_bodies(hx_net* net, const hx_body_step* rows, uint32_t num) {
  uint32_t i;
  hx_status status = HX_OK;
  for (i = 0; i < num && status == HX_OK; ++i) status = check_row(net, &rows[i], i ? rows[i - 1].step + 1 : 0);
  if (status != HX_OK) return status;
  net->body_steps = rows;
  net->num_body_steps = num;
  return HX_OK;
}

#if defined(HX_BODIES)
int hx_run_body(const hx_call* call, int axis, hx_range range) {
  const hx_body_step* row = call->net->body_steps;
  const hx_body_step* end = row + call->net->num_body_steps;
  for (; row < end; ++row)
    if (row->step == call->step) return row->body->run(call, row, scratch_of(call->net, row), axis, range);
  return 0;
}
#endif
