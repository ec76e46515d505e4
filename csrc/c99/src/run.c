/* Runs a verified plan: its steps in order, with loops unrolled during the run. Kernels see rings as whole tensors. */
#include "internal.h"

static int32_t clip(int32_t value, int32_t extent) { return hx_min(hx_max(value, 0), extent); }

/* Ends the loops whose last step was the previous step, or starts their next iteration. */
static void leave_loops(const hx_net* net, hx_runs* runs) {
  for (; runs->depth; --runs->depth) {
    const uint32_t row = runs->open[runs->depth - 1].row;
    const uint8_t* loop = hx_loop_row(net, row);
    const uint32_t first = HX_FIELD(loop, PlanLoop, first_step);
    if (runs->step < first + HX_FIELD(loop, PlanLoop, num_steps)) return;
    if (++runs->open[runs->depth - 1].trip < HX_FIELD(loop, PlanLoop, trips)) {
      runs->step = first;
      runs->next_loop = row + 1;
      return;
    }
  }
}

/* Returns how far the open loops have moved the range of a step. The distance fits in 32 bits, see verify_steps.c. */
static int32_t moved(const hx_net* net, const hx_runs* runs, uint32_t step) {
  uint32_t i, by = 0;
  for (i = 0; i < runs->depth; ++i) {
    const uint8_t* loop = hx_loop_row(net, runs->open[i].row);
    const uint32_t row = HX_FIELD(loop, PlanLoop, moves) + step - HX_FIELD(loop, PlanLoop, first_step);
    by += hx_u32(hx_row(net, HX_MOVES, row, 8)) * runs->open[i].trip;
  }
  return hx_signed(by);
}

int hx_next_run(const hx_net* net, hx_runs* runs, uint32_t* step, int* axis, hx_range* range) {
  do {
    const uint8_t* row;
    leave_loops(net, runs);
    if (runs->step == net->sections[HX_STEPS].rows) return 0;
    for (; runs->next_loop < net->sections[HX_LOOPS].rows &&
           HX_FIELD(hx_loop_row(net, runs->next_loop), PlanLoop, first_step) == runs->step;
         ++runs->next_loop) {
      runs->open[runs->depth].row = runs->next_loop;
      runs->open[runs->depth++].trip = 0;
    }
    *step = runs->step++;
    row = hx_step_row(net, *step);
    *axis = hx_signed(HX_FIELD(row, PlanStep, cut_axis));
    range->begin = range->end = 0;
    if (*axis >= 0) {
      const uint32_t output = HX_FIELD(row, PlanStep, operands) + HX_FIELD(row, PlanStep, num_inputs);
      const int32_t extent = hx_signed(hx_u32(hx_dims(net, hx_operand_id(net, output)) + 8 * (1 + *axis)));
      const int32_t by = moved(net, runs, *step);
      range->begin = clip(hx_signed(HX_FIELD(row, PlanStep, begin)) + by, extent);
      range->end = clip(hx_signed(HX_FIELD(row, PlanStep, end)) + by, extent);
    }
  } while (*axis >= 0 && range->begin >= range->end);
  return 1;
}

hx_range hx_needed(const hx_call* call, uint32_t input, int axis, hx_range range) {
  hx_view in, out;
  hx_range all;
  hx_operand(call, input, &in);
  hx_output(call, 0, &out);
  all.begin = 0;
  all.end = axis >= 0 && axis < in.rank ? in.shape[axis] : INT_MAX;
  if (call->kernel->needs == HX_NEEDS_ROWS && input == 0 && axis == 1) return call->kernel->rows(call, range);
  if (call->kernel->needs <= HX_NEEDS_WHOLE || axis < 0 || axis >= in.rank || in.rank != out.rank) return all;
  return in.shape[axis] == out.shape[axis] ? range : all;
}

/* Skips input 0 of a kernel with rows(), which finds the rows of its ring itself. */
int32_t hx_turn_end(const hx_call* call, hx_range range) {
  uint32_t i;
  for (i = 0; i < call->num_inputs + call->num_outputs; ++i) {
    hx_view view;
    if (!hx_operand(call, i, &view) || !view.ring) continue;
    if (i == 0 && call->kernel->needs == HX_NEEDS_ROWS) continue;
    range.end = hx_min(range.end, (range.begin / view.ring + 1) * view.ring);
  }
  return range.end;
}

static void run_part(const hx_call* call, int axis, hx_range range) {
  if (!hx_run_body(call, axis, range)) call->kernel->run(call, axis, range);
}

static void run_step(const hx_call* call, int axis, hx_range range) {
  if (axis != 1) {
    run_part(call, axis, range);
    return;
  }
  while (range.begin < range.end) {
    hx_range part;
    part.begin = range.begin;
    part.end = hx_turn_end(call, range);
    run_part(call, 1, part);
    range.begin = part.end;
  }
}

static hx_status check_ports(hx_net* net) {
  int section;
  for (section = HX_INPUTS; section <= HX_OUTPUTS; ++section) {
    uint32_t i;
    for (i = 0; i < net->sections[section].rows; ++i) {
      const uint32_t space = hx_port_space(net, section, i);
      const size_t bytes = HX_FIELD(hx_space_row(net, space), PlanSpace, bytes);
      if (hx_is_streamed(net, section, i)) {
        if (section == HX_INPUTS ? !net->hooks.input : !net->hooks.output)
          return hx_fail(net, HX_NO_MEMORY, hx_section_name((uint32_t)section), i, hx_port_name(net, section, i),
                         "need a hook for its rows");
        continue;
      }
      if (bytes && (!net->memory[space].data || net->memory[space].bytes < bytes))
        return hx_fail(net, HX_NO_MEMORY, hx_section_name((uint32_t)section), i, hx_port_name(net, section, i),
                       "need memory for all of it");
    }
  }
  return HX_OK;
}

hx_status hx_run(hx_net* net) {
  hx_runs runs;
  hx_call call;
  hx_range range;
  uint32_t step, next_block = 0;
  int axis;
  hx_status status = check_ports(net);
  memset(&runs, 0, sizeof runs);
  net->failed = HX_OK;
  while (status == HX_OK && hx_next_run(net, &runs, &step, &axis, &range)) {
    status = hx_unpack_blocks(net, &next_block, step);
    if (status != HX_OK) return status;
    hx_step(net, step, &call);
    if (HX_HOOKS && net->hooks.trace) net->hooks.trace(net->hooks.context, step, axis, range.begin, range.end);
    if (hx_streams(&call)) {
      if (hx_move_rows(&call, axis, range)) return HX_STOPPED;
    } else {
      run_step(&call, axis, range);
      if (net->failed != HX_OK) return net->failed;
    }
    if (HX_HOOKS && net->hooks.yield && net->hooks.yield(net->hooks.context, step)) return HX_STOPPED;
  }
  return status;
}
