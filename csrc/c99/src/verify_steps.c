/* Verifies the steps of a plan and its loops: their names, the bytes that they read and write, and their kernels' own
 * checks. */
#include "internal.h"

#define MOST_OUTPUTS 256u /* most outputs of a step */
#define MOST_RUNS (1u << 20)
/* The largest begin and end of a step's range in a loop, and the largest move of the range in all trips together. With
 * this limit a position in HX_MOST_DEPTH nested loops fits in 32 bits. */
#define MOST_MOVE (1 << 27)
#define MOST_WORK (1u << 26) /* most visits of tensors in the search for the writers of bytes: less than a second */

typedef struct steps {
  hx_net* net;
  uint32_t work;
} steps;

static hx_status bad_loop(hx_net* net, uint32_t loop, const char* what) {
  return hx_fail(net, HX_BAD_PLAN, "loops", loop, "", what);
}

/* Returns the end of the outermost loop around a step, or the step itself. */
static uint32_t end_around(const hx_net* net, uint32_t step) {
  uint32_t i;
  for (i = 0; i < net->sections[HX_LOOPS].rows; ++i) {
    const uint8_t* loop = hx_loop_row(net, i);
    const uint32_t first = HX_FIELD(loop, PlanLoop, first_step), num = HX_FIELD(loop, PlanLoop, num_steps);
    if (step < first) break;
    if (step - first < num) return first + num;
  }
  return step;
}

static hx_status check_fields(hx_net* net, uint32_t i, uint32_t* operands) {
  const uint8_t* row = hx_step_row(net, i);
  const char* device = hx_string(net, HX_FIELD(row, PlanStep, device));
  const uint32_t left = net->sections[HX_OPERANDS].rows - *operands, attrs = HX_FIELD(row, PlanStep, attrs),
                 attrs_bytes = HX_FIELD(row, PlanStep, attrs_bytes), attrs_all = net->sections[HX_ATTRS].bytes;
  const int32_t axis = hx_signed(HX_FIELD(row, PlanStep, cut_axis)), begin = hx_signed(HX_FIELD(row, PlanStep, begin)),
                end = hx_signed(HX_FIELD(row, PlanStep, end));
  const int in_loop = end_around(net, i) != i;
  hx_call call;
  uint32_t k;
  if (!hx_same(device, "cpu")) return hx_fail(net, HX_UNSUPPORTED, "steps", i, device, "device: need cpu");
  if (attrs % 8 || attrs > attrs_all || attrs_bytes > attrs_all - attrs)
    return hx_bad_step(net, i, "attrs: need whole words inside the section");
  hx_step(net, i, &call);
  if (!call.kernel)
    return hx_fail(net, HX_UNSUPPORTED, "steps", i, hx_string(net, HX_FIELD(row, PlanStep, kernel)),
                   "kernel: this build has not got it");
  if (attrs_bytes != 8 * (call.activation ? call.activation->num_numbers : call.kernel->attrs_words))
    return hx_refuse(&call, "attrs: got another size");
  if (call.num_outputs < 1 || call.num_outputs > MOST_OUTPUTS ||
      (call.num_outputs > 1 && call.kernel->needs != HX_NEEDS_WHOLE))
    return hx_refuse(&call, "outputs: need 1");
  if (call.operands != *operands || call.num_outputs > left || call.num_inputs > left - call.num_outputs)
    return hx_refuse(&call, "operands: need them after those of the previous step");
  if (axis == -1 ? begin || end || in_loop
                 : (uint32_t)axis >= PLAN_MAX_RANK || begin >= end || begin < (in_loop ? -MOST_MOVE : 0) ||
                       (in_loop && end > MOST_MOVE))
    return hx_refuse(&call, "cut: need an axis and a range, in loops, or none for all of the output");
  for (k = 0; k < call.num_inputs + call.num_outputs; ++k) {
    const uint32_t id = hx_operand_id(net, (*operands)++);
    if (!(id == PLAN_ABSENT && k < call.num_inputs) && id >= net->sections[HX_TENSORS].rows)
      return hx_refuse(&call, "operands: got none of the tensors");
  }
  return HX_OK;
}

static hx_status check_loops(hx_net* net) {
  struct {
    uint32_t end, runs;
  } open[HX_MOST_DEPTH + 1]; /* one more entry for the list of all steps, which encloses the loops */
  uint32_t depth = 0, first_before = 0, runs = 0, i, k;
  open[0].end = net->sections[HX_STEPS].rows;
  open[0].runs = 1;
  for (i = 0; i < net->sections[HX_LOOPS].rows; ++i) {
    const uint8_t* row = hx_loop_row(net, i);
    const uint32_t first = HX_FIELD(row, PlanLoop, first_step), num = HX_FIELD(row, PlanLoop, num_steps),
                   moves = HX_FIELD(row, PlanLoop, moves), trips = HX_FIELD(row, PlanLoop, trips),
                   moves_all = net->sections[HX_MOVES].rows;
    if (first < first_before) return bad_loop(net, i, "first_step: need them in order");
    first_before = first;
    while (open[depth].end <= first) --depth;
    if (num == 0 || num > open[depth].end - first)
      return bad_loop(net, i, "steps: need some of the plan's, the end inside the loop around it");
    if (depth == HX_MOST_DEPTH) return bad_loop(net, i, "got a loop in too many others");
    if (trips < 1 || trips > MOST_RUNS / open[depth].runs) return bad_loop(net, i, "trips: need 1 to 2^20 in all");
    open[depth + 1].end = first + num;
    open[depth + 1].runs = open[depth].runs * trips;
    if (num > (MOST_RUNS - runs) / open[++depth].runs) return bad_loop(net, i, "got too many runs of steps");
    runs += num * open[depth].runs;
    if (moves > moves_all || num > moves_all - moves) return bad_loop(net, i, "moves: need them inside the section");
    for (k = moves; k < moves + num; ++k) {
      const int32_t move = hx_signed(hx_u32(hx_row(net, HX_MOVES, k, 8))), most = MOST_MOVE / (int32_t)trips;
      if (move < -most || move > most) return bad_loop(net, i, "moves: need at most 2^27 in all trips");
    }
  }
  return HX_OK;
}

/* ---- which bytes ---- */

typedef struct axes {
  int num;
  uint32_t stride[PLAN_MAX_RANK], count[PLAN_MAX_RANK];
} axes;

/* The axes with more than one index, sorted by stride, smallest first. */
static void sorted_axes(const hx_view* view, axes* sorted) {
  int axis, at;
  sorted->num = 0;
  for (axis = 0; axis < view->rank; ++axis) {
    const int32_t count = axis == 1 && view->ring ? view->ring : view->shape[axis];
    if (count <= 1) continue;
    for (at = sorted->num++; at > 0 && sorted->stride[at - 1] > (uint32_t)view->strides[axis]; --at) {
      sorted->stride[at] = sorted->stride[at - 1];
      sorted->count[at] = sorted->count[at - 1];
    }
    sorted->stride[at] = (uint32_t)view->strides[axis];
    sorted->count[at] = (uint32_t)count;
  }
}

static int overlaps_itself(const hx_view* view) {
  axes a;
  uint32_t inner = (uint32_t)view->item;
  int i;
  if (hx_extent(view) == 0) return 0;
  sorted_axes(view, &a);
  for (i = 0; i < a.num; ++i) {
    if (a.stride[i] < inner) return 1;
    inner += a.stride[i] * (a.count[i] - 1);
  }
  return 0;
}

/* Divides a view into rows that are multiples of `pitch` apart. Returns the bytes of a row, or 0 if the view has no
 * such rows. */
static uint32_t row_bytes(const axes* a, int32_t item, uint32_t pitch) {
  uint32_t bytes = (uint32_t)item;
  int i;
  for (i = 0; i < a->num; ++i) {
    if (a->stride[i] % pitch == 0) continue;
    if (a->stride[i] > pitch) return 0;
    bytes += a->stride[i] * (a->count[i] - 1);
  }
  return bytes <= pitch ? bytes : 0;
}

/* True if the views alternate in rows of a common pitch, as the two halves of a concatenated axis do. */
static int take_turns(const hx_view* a, const hx_view* b) {
  axes sorted[2];
  int which, i;
  sorted_axes(a, &sorted[0]);
  sorted_axes(b, &sorted[1]);
  for (which = 0; which < 2; ++which)
    for (i = 0; i < sorted[which].num; ++i) {
      const uint32_t pitch = sorted[which].stride[i];
      uint32_t a_bytes, b_bytes, there;
      if (pitch == 0) continue;
      a_bytes = row_bytes(&sorted[0], a->item, pitch);
      b_bytes = row_bytes(&sorted[1], b->item, pitch);
      if (!a_bytes || !b_bytes) continue;
      there = (b->offset % pitch + pitch - a->offset % pitch) % pitch;
      if (there >= a_bytes && pitch - there >= b_bytes) return 1;
    }
  return 0;
}

static int is_same_view(const hx_view* a, const hx_view* b) {
  int i = 0, j = 0;
  if (a->ring != b->ring) return 0;
  for (;; ++i, ++j) {
    while (i < a->rank && a->shape[i] == 1) ++i;
    while (j < b->rank && b->shape[j] == 1) ++j;
    if (i == a->rank || j == b->rank) return i == a->rank && j == b->rank;
    if (a->shape[i] != b->shape[j] || a->strides[i] != b->strides[j]) return 0;
  }
}

/* True if two views share bytes. */
static int share(const hx_view* a, const hx_view* b) {
  const uint32_t a_bytes = hx_extent(a), b_bytes = hx_extent(b);
  return a->space == b->space && a_bytes && b_bytes && a->offset < b->offset + b_bytes &&
         b->offset < a->offset + a_bytes && !take_turns(a, b);
}

/* True if an input and an output of a step share bytes in a way that kernels do not allow. */
static int collide(const hx_view* a, const hx_view* b) {
  return share(a, b) && !(a->offset == b->offset && a->item == b->item && is_same_view(a, b));
}

/* Returns the rows of its cut axis that a step writes in all its runs together. */
static hx_range rows_written(const hx_net* net, uint32_t step, int32_t extent) {
  const uint8_t* row = hx_step_row(net, step);
  hx_range rows;
  uint32_t i;
  rows.begin = hx_signed(HX_FIELD(row, PlanStep, begin));
  rows.end = hx_signed(HX_FIELD(row, PlanStep, end));
  for (i = 0; i < net->sections[HX_LOOPS].rows; ++i) {
    const uint8_t* loop = hx_loop_row(net, i);
    const uint32_t at = step - HX_FIELD(loop, PlanLoop, first_step);
    int32_t moved;
    if (step < HX_FIELD(loop, PlanLoop, first_step)) break;
    if (at >= HX_FIELD(loop, PlanLoop, num_steps)) continue;
    moved = hx_signed(hx_u32(hx_row(net, HX_MOVES, HX_FIELD(loop, PlanLoop, moves) + at, 8))) *
            hx_signed(HX_FIELD(loop, PlanLoop, trips) - 1);
    rows.begin += hx_min(moved, 0);
    rows.end += hx_max(moved, 0);
  }
  rows.begin = hx_max(rows.begin, 0);
  rows.end = hx_max(hx_min(rows.end, extent), rows.begin);
  return rows;
}

/* Returns the end of a space's written bytes: `end`, or beyond it if an output of the step begins at or before `end`
 * and reaches further. */
static uint32_t end_with(const hx_net* net, uint32_t step, uint32_t output, uint32_t space, uint32_t end) {
  const int axis = hx_signed(HX_FIELD(hx_step_row(net, step), PlanStep, cut_axis));
  hx_view view;
  hx_tensor(net, output, &view);
  if (view.space != space || view.offset > end) return end;
  if (axis >= 0 && axis < view.rank && !(axis == 1 && view.ring)) {
    const hx_range rows = rows_written(net, step, view.shape[axis]);
    view.offset += (uint32_t)rows.begin * (uint32_t)view.strides[axis];
    view.shape[axis] = rows.end - rows.begin;
  }
  return view.offset <= end && view.offset + hx_extent(&view) > end ? view.offset + hx_extent(&view) : end;
}

/* Returns the end of the bytes of a space that steps before `limit` have written without a gap from `offset` on. */
static uint32_t written_end(steps* s, uint32_t space, uint32_t limit, uint32_t offset) {
  const hx_net* net = s->net;
  uint32_t step, best = offset, before;
  do {
    before = best;
    for (step = 0; step < limit; ++step) {
      const uint8_t* row = hx_step_row(net, step);
      const uint32_t first = HX_FIELD(row, PlanStep, operands) + HX_FIELD(row, PlanStep, num_inputs);
      uint32_t i;
      for (i = 0; i < HX_FIELD(row, PlanStep, num_outputs); ++i) {
        if (s->work++ > MOST_WORK) return best;
        best = end_with(net, step, hx_operand_id(net, first + i), space, best);
      }
    }
  } while (best > before);
  return best;
}

/* True if every element of a view has been written; gaps between its rows may be unwritten. */
static int is_written(steps* s, const hx_view* view, uint32_t limit) {
  const uint32_t whole = hx_extent(view), item = (uint32_t)view->item;
  uint32_t index[PLAN_MAX_RANK] = {0};
  uint32_t at = view->offset, done;
  axes a;
  if (whole == 0) return 1;
  done = written_end(s, view->space, limit, at);
  if (done >= at + whole) return 1;
  sorted_axes(view, &a);
  for (;;) { /* element by element; elements below `done` are known to be written */
    int axis = 0;
    if (s->work++ > MOST_WORK) return 0;
    if (at + item > done) {
      done = written_end(s, view->space, limit, at);
      if (at + item > done) return 0;
    }
    for (; axis < a.num; ++axis) {
      if (a.stride[axis] == 0) continue;
      at += a.stride[axis];
      if (++index[axis] < a.count[axis]) break;
      at -= a.stride[axis] * a.count[axis];
      index[axis] = 0;
      done = 0; /* an outer axis may go back to lower addresses */
    }
    if (axis == a.num) return 1;
  }
}

/* True if steps may only read the space. */
static int is_read_only(const hx_net* net, uint32_t space) {
  const hx_kind kind = hx_kind_of(net, space);
  uint32_t i;
  for (i = 0; i < net->sections[HX_INPUTS].rows; ++i)
    if (hx_input_space(net, i) == space) return 1;
  return kind == HX_WEIGHTS_SPACE || (HX_STATES && kind == HX_PARAM_SPACE);
}

/* ---- steps ---- */

/* A step reads only results of earlier steps, ports, weights and states. A step writes an output only to memory that a
 * program may write, and to no byte of an input, unless input and output are exactly the same view. */
static hx_status check_bytes(steps* s, const hx_call* call, const hx_view* out) {
  const hx_net* net = call->net;
  const uint32_t limit = end_around(net, call->step);
  uint32_t i;
  hx_view in;
  if (is_read_only(net, out->space)) return hx_refuse(call, "writes a tensor that is only read");
  if (overlaps_itself(out)) return hx_refuse(call, "the elements of its output overlap");
  for (i = 0; i < call->num_inputs; ++i) {
    if (!hx_input(call, i, &in)) continue;
    if (!is_read_only(net, in.space) && !(HX_STATES && hx_kind_of(net, in.space) == HX_STATE_SPACE) &&
        !is_written(s, &in, limit))
      return s->work > MOST_WORK
                 ? hx_fail(call->net, HX_UNSUPPORTED, "steps", call->step, "", "got too many steps to verify")
                 : hx_refuse(call, "reads bytes that no earlier step has written");
    if (collide(&in, out)) return hx_refuse(call, "operands overlap: need the same view or none of its bytes");
  }
  return HX_OK;
}

static hx_status check_step(steps* s, uint32_t step, uint32_t* next_block) {
  hx_net* net = s->net;
  const uint8_t* row = hx_step_row(net, step);
  const int axis = hx_signed(HX_FIELD(row, PlanStep, cut_axis));
  uint32_t i, k;
  hx_call call;
  hx_view view, other;
  hx_status status = HX_OK;
  hx_step(net, step, &call);
  for (i = 0; i < call.num_inputs + call.num_outputs && status == HX_OK; ++i) {
    const uint32_t id = hx_operand_id(net, call.operands + i);
    if (id != PLAN_ABSENT) status = hx_verify_operand(net, step, id);
  }
  if (status == HX_OK) status = hx_unpack_blocks(net, next_block, step); /* checks of kernels may read weights */
  if (status == HX_OK) status = call.kernel->check(&call);
  if (status != HX_OK) return status;
  for (i = 0; i <= call.num_inputs; ++i) /* the last operand is the first output, whose view is used below */
    if (hx_operand(&call, i, &view) && view.ring && axis != 1) return hx_refuse(&call, "cut: need axis 1 for rings");
  if (axis >= 0 && (axis >= view.rank || !(call.kernel->cuts >> axis & 1)))
    return hx_refuse(&call, "cut: need an axis along which the kernel can be cut");
  if (axis >= 0 && end_around(net, step) == step && hx_signed(HX_FIELD(row, PlanStep, end)) > view.shape[axis])
    return hx_refuse(&call, "cut: need a range inside of the output");
  for (i = 0; i < call.num_outputs && status == HX_OK; ++i) {
    hx_output(&call, i, &view);
    status = check_bytes(s, &call, &view);
    for (k = 0; k < i && status == HX_OK; ++k) {
      hx_output(&call, k, &other);
      if (share(&view, &other)) status = hx_refuse(&call, "outputs overlap: need bytes of their own");
    }
  }
  return status;
}

/* Checks that a run needs no more rows of a ring than it holds, and that kernels without rows() need only the rows
 * of the range. */
static hx_status check_run(hx_net* net, uint32_t step, hx_range range) {
  hx_call call;
  uint32_t i;
  hx_step(net, step, &call);
  for (i = 0; i <= call.num_inputs; ++i) {
    const int is_input = i < call.num_inputs;
    hx_range used = range;
    hx_view view;
    if (!hx_operand(&call, i, &view) || !view.ring) continue;
    if (!is_input && call.kernel->needs == HX_NEEDS_ORDER) continue; /* only the output's last row matters */
    if (is_input) used = hx_needed(&call, i, 1, range);
    if (used.end - used.begin > view.ring) return hx_refuse(&call, "got a ring of fewer rows than it needs");
    if (!(i == 0 && call.kernel->needs == HX_NEEDS_ROWS) && (used.begin != range.begin || used.end != range.end))
      return hx_refuse(&call, "got a ring, need all rows");
  }
  return HX_OK;
}

static hx_status check_runs(hx_net* net) {
  hx_runs runs;
  hx_range range;
  uint32_t step;
  int axis;
  hx_status status = HX_OK;
  memset(&runs, 0, sizeof runs);
  while (status == HX_OK && hx_next_run(net, &runs, &step, &axis, &range))
    if (axis == 1) status = check_run(net, step, range);
  return status;
}

hx_status hx_verify_steps(hx_net* net) {
  const uint32_t num = net->sections[HX_STEPS].rows;
  uint32_t operands = 0, next_block = 0, i;
  hx_view view;
  steps s;
  hx_status status = check_loops(net);
  s.net = net;
  s.work = 0;
  for (i = 0; i < num && status == HX_OK; ++i) status = check_fields(net, i, &operands);
  if (status == HX_OK && operands != net->sections[HX_OPERANDS].rows)
    status = hx_fail(net, HX_BAD_PLAN, "operands", 0, "", "need those of the steps");
  if (status == HX_OK) status = hx_verify_blocks(net);
  for (i = 0; i < num && status == HX_OK; ++i) status = check_step(&s, i, &next_block);
  if (status == HX_OK) status = check_runs(net);
  if (status == HX_OK) status = hx_verify_streamed_ports(net);
  for (i = 0; i < net->sections[HX_OUTPUTS].rows && status == HX_OK; ++i) {
    hx_tensor(net, HX_FIELD(hx_row(net, HX_OUTPUTS, i, sizeof(PlanPort)), PlanPort, tensor), &view);
    if (!is_written(&s, &view, num))
      status = hx_fail(net, HX_BAD_PLAN, "outputs", i, hx_output_name(net, i), "no step writes all of it");
  }
  return status;
}
