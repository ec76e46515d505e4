/* Verifies the steps of a plan and its loops: what they name, which bytes they read and write, and that the kernels
 * take them. */
#include "internal.h"

#define MOST_RUNS (1u << 20)
#define MOST_MOVE ((int64_t)1 << 32)
#define MOST_DEPTH 8
#define MOST_WORK (1u << 26) /* looks at tensors in the search for who has written a byte: well under a second */

typedef struct steps {
  hx_net* net;
  uint32_t num_steps, work;
} steps;

static const uint8_t* row_at(const hx_net* net, int section, uint32_t row, size_t bytes) {
  return net->sections[section].data + row * bytes;
}

static const uint8_t* step_row(const hx_net* net, uint32_t i) { return row_at(net, HX_STEPS, i, sizeof(PlanStep)); }
static const uint8_t* loop_row(const hx_net* net, uint32_t i) { return row_at(net, HX_LOOPS, i, sizeof(PlanLoop)); }

static hx_status bad(hx_net* net, uint32_t step, const char* what) {
  const uint8_t* row = step_row(net, step);
  const uint32_t kernel = hx_u32(row + offsetof(PlanStep, kernel));
  return hx_fail(net, HX_BAD_PLAN, "steps", step,
                 kernel < net->sections[HX_STRINGS].bytes ? hx_string(net, kernel) : "", what);
}

static hx_status bad_loop(hx_net* net, uint32_t loop, const char* what) {
  return hx_fail(net, HX_BAD_PLAN, "loops", loop, "", what);
}

/* The end of the outermost loop around a step, or the step's own. */
static uint32_t end_around(const hx_net* net, uint32_t step, int* in_loop) {
  uint32_t i;
  *in_loop = 0;
  for (i = 0; i < net->sections[HX_LOOPS].rows; ++i) {
    const uint32_t first = hx_u32(loop_row(net, i) + offsetof(PlanLoop, first_step)),
                   num = hx_u32(loop_row(net, i) + offsetof(PlanLoop, num_steps));
    if (step < first) break;
    if (step - first >= num) continue;
    *in_loop = 1;
    return first + num;
  }
  return step;
}

static hx_status check_fields(hx_net* net, uint32_t i, uint32_t first_operand, int in_loop) {
  const uint8_t* row = step_row(net, i);
  const uint32_t inputs = hx_u32(row + offsetof(PlanStep, num_inputs)),
                 outputs = hx_u32(row + offsetof(PlanStep, num_outputs)),
                 attrs = hx_u32(row + offsetof(PlanStep, attrs)),
                 attrs_bytes = hx_u32(row + offsetof(PlanStep, attrs_bytes)),
                 left = net->sections[HX_OPERANDS].rows - first_operand;
  const uint32_t axis = hx_u32(row + offsetof(PlanStep, cut_axis));
  const uint32_t axis_high = hx_u32(row + offsetof(PlanStep, cut_axis) + 4);
  const int64_t begin = hx_i64(row + offsetof(PlanStep, begin)), end = hx_i64(row + offsetof(PlanStep, end));
  uint32_t k;
  if (!hx_same(hx_string(net, hx_u32(row + offsetof(PlanStep, device))), "cpu"))
    return hx_fail(net, HX_UNSUPPORTED, "steps", i, hx_string(net, hx_u32(row + offsetof(PlanStep, device))),
                   "device: need cpu");
  if (hx_u32(row + offsetof(PlanStep, operands)) != first_operand || inputs > left || outputs > left - inputs)
    return bad(net, i, "operands: need them behind those of the step before");
  if (outputs == 0) return bad(net, i, "outputs: need at least 1");
  if (attrs % 8 || attrs_bytes % 8 || attrs > net->sections[HX_ATTRS].bytes ||
      attrs_bytes > net->sections[HX_ATTRS].bytes - attrs)
    return bad(net, i, "attrs: need whole words inside the section");
  if (axis == 0xffffffffu && axis_high == 0xffffffffu) {
    if (begin || end || in_loop) return bad(net, i, "cut: need a range in a loop, none for all of the output");
  } else if (axis >= PLAN_MAX_RANK || axis_high || begin >= end || (!in_loop && begin < 0) || begin < -MOST_MOVE ||
             end > MOST_MOVE || end < -MOST_MOVE || begin > MOST_MOVE) {
    return bad(net, i, "cut: need an axis and a range");
  }
  for (k = 0; k < inputs + outputs; ++k) {
    const uint32_t id = hx_u32(row_at(net, HX_OPERANDS, first_operand + k, 4));
    if (!(id == PLAN_ABSENT && k < inputs) && id >= net->sections[HX_TENSORS].rows)
      return bad(net, i, "operands: got none of the tensors");
  }
  return HX_OK;
}

static hx_status check_loops(hx_net* net) {
  struct {
    uint32_t end, runs;
  } open[MOST_DEPTH];
  uint32_t depth = 0, i, k;
  uint32_t first_before = 0, runs = 0;
  for (i = 0; i < net->sections[HX_LOOPS].rows; ++i) {
    const uint8_t* row = loop_row(net, i);
    const uint32_t first = hx_u32(row + offsetof(PlanLoop, first_step)),
                   num = hx_u32(row + offsetof(PlanLoop, num_steps)), moves = hx_u32(row + offsetof(PlanLoop, moves)),
                   trips = hx_u32(row + offsetof(PlanLoop, trips)), end = first + num;
    uint32_t around;
    if (num == 0 || num > net->sections[HX_STEPS].rows - first)
      return bad_loop(net, i, "steps: need some of the plan's");
    if (first < first_before) return bad_loop(net, i, "first_step: need them in order");
    first_before = first;
    while (depth && open[depth - 1].end <= first) --depth;
    if (depth && end > open[depth - 1].end) return bad_loop(net, i, "steps: need the end inside the loop around it");
    if (depth == MOST_DEPTH) return bad_loop(net, i, "got a loop in too many others");
    around = depth ? open[depth - 1].runs : 1;
    if (trips < 1 || trips > MOST_RUNS / around) return bad_loop(net, i, "trips: need 1 to 2^20 in all");
    open[depth].end = end;
    open[depth].runs = around * trips;
    if (num > (MOST_RUNS - runs) / open[depth].runs) return bad_loop(net, i, "got too many runs of steps");
    runs += num * open[depth++].runs;
    if (moves > net->sections[HX_MOVES].rows || num > net->sections[HX_MOVES].rows - moves)
      return bad_loop(net, i, "moves: need them inside the section");
    for (k = 0; k < num; ++k) {
      const int64_t move = hx_i64(row_at(net, HX_MOVES, (uint32_t)moves + k, 8));
      if (move < -MOST_MOVE || move > MOST_MOVE) return bad_loop(net, i, "moves: need at most 2^32");
    }
  }
  return HX_OK;
}

/* ---- which bytes ---- */

typedef struct axes {
  int num;
  uint32_t stride[PLAN_MAX_RANK], count[PLAN_MAX_RANK];
} axes;

/* Axes with more than one index, the smallest stride first. */
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

/* Bytes of one row, where the rows are a multiple of `pitch` apart; 0 if the view is not made of such rows. */
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

/* Whether the views take turns in rows of a common pitch, as two halves of a concatenated axis do. */
static int take_turns(const hx_view* a, const hx_view* b, uint32_t a_offset, uint32_t b_offset) {
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
      there = (b_offset % pitch + pitch - a_offset % pitch) % pitch;
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

static uint32_t tensor_space(const hx_net* net, uint32_t id) {
  return hx_u32(row_at(net, HX_TENSORS, id, sizeof(PlanTensorRow)) + offsetof(PlanTensorRow, space));
}

static uint32_t tensor_offset(const hx_net* net, uint32_t id) {
  return hx_u32(row_at(net, HX_TENSORS, id, sizeof(PlanTensorRow)) + offsetof(PlanTensorRow, offset));
}

/* Whether two operands of a step share bytes in a way that a kernel may not meet. */
static int collide(const hx_net* net, uint32_t a_id, uint32_t b_id, int may_be_same) {
  const uint32_t a_offset = tensor_offset(net, a_id), b_offset = tensor_offset(net, b_id);
  hx_view a, b;
  uint32_t a_bytes, b_bytes;
  if (tensor_space(net, a_id) != tensor_space(net, b_id)) return 0;
  hx_tensor(net, a_id, &a);
  hx_tensor(net, b_id, &b);
  a_bytes = hx_extent(&a);
  b_bytes = hx_extent(&b);
  if (!a_bytes || !b_bytes || a_offset + a_bytes <= b_offset || b_offset + b_bytes <= a_offset) return 0;
  if (may_be_same && a_offset == b_offset && a.item == b.item && is_same_view(&a, &b)) return 0;
  return !take_turns(&a, &b, a_offset, b_offset);
}

/* The rows of its cut axis that a step writes in all runs. */
static void rows_written(const hx_net* net, uint32_t step, int axis, int32_t extent, int64_t* begin, int64_t* end) {
  const uint8_t* row = step_row(net, step);
  uint32_t i;
  *begin = hx_i64(row + offsetof(PlanStep, begin));
  *end = hx_i64(row + offsetof(PlanStep, end));
  for (i = 0; i < net->sections[HX_LOOPS].rows; ++i) {
    const uint8_t* loop = loop_row(net, i);
    const uint32_t first = hx_u32(loop + offsetof(PlanLoop, first_step));
    int64_t moved;
    if (step < first) break;
    if (step - first >= hx_u32(loop + offsetof(PlanLoop, num_steps))) continue;
    moved = hx_i64(row_at(net, HX_MOVES, hx_u32(loop + offsetof(PlanLoop, moves)) + step - first, 8)) *
            ((int64_t)hx_u32(loop + offsetof(PlanLoop, trips)) - 1);
    if (moved < 0) *begin += moved;
    if (moved > 0) *end += moved;
  }
  if (*begin < 0 || axis < 0) *begin = 0;
  if (*end > extent || axis < 0) *end = extent;
  if (*end < *begin) *end = *begin;
}

/* How far from `offset` on the bytes of a space have been written by the steps before `limit`. */
static uint32_t written_end(steps* s, uint32_t space, uint32_t limit, uint32_t offset) {
  const hx_net* net = s->net;
  uint32_t step, k;
  uint32_t best = offset, before;
  do {
    before = best;
    for (step = 0; step < limit; ++step) {
      const uint8_t* row = step_row(net, step);
      const uint32_t first = hx_u32(row + offsetof(PlanStep, operands)) + hx_u32(row + offsetof(PlanStep, num_inputs)),
                     num = hx_u32(row + offsetof(PlanStep, num_outputs));
      const int axis = hx_signed(hx_u32(row + offsetof(PlanStep, cut_axis)));
      if (s->work++ > MOST_WORK) return best;
      for (k = 0; k < num; ++k) {
        const uint32_t id = hx_u32(row_at(net, HX_OPERANDS, first + k, 4));
        uint32_t begin;
        int64_t from = 0, to = 0;
        hx_view view;
        if (tensor_space(net, id) != space) continue;
        begin = tensor_offset(net, id);
        if (begin > best) continue;
        hx_tensor(net, id, &view);
        if (axis >= 0 && axis < view.rank && !(axis == 1 && view.ring)) {
          rows_written(net, step, axis, view.shape[axis], &from, &to);
          begin += (uint32_t)from * (uint32_t)view.strides[axis];
          view.shape[axis] = (int32_t)(to - from);
        }
        if (begin <= best && begin + hx_extent(&view) > best) best = begin + hx_extent(&view);
      }
    }
  } while (best > before);
  return best;
}

/* Whether every element of a view has been written; gaps between its rows may be unwritten. */
static int is_written(steps* s, uint32_t id, uint32_t limit) {
  const uint32_t space = tensor_space(s->net, id);
  uint32_t index[PLAN_MAX_RANK] = {0};
  uint32_t at = tensor_offset(s->net, id), done, whole;
  axes a;
  hx_view view;
  hx_tensor(s->net, id, &view);
  whole = hx_extent(&view);
  if (whole == 0) return 1;
  done = written_end(s, space, limit, at);
  if (done >= at + whole) return 1;
  sorted_axes(&view, &a);
  for (;;) { /* element by element, those that are known to be there passed over quickly */
    int axis = 0;
    if (s->work++ > MOST_WORK) return 0;
    if (at + (uint32_t)view.item > done) {
      done = written_end(s, space, limit, at);
      if (at + (uint32_t)view.item > done) return 0;
    }
    for (; axis < a.num; ++axis) {
      if (a.stride[axis] == 0) continue;
      at += a.stride[axis];
      if (++index[axis] < a.count[axis]) break;
      at -= a.stride[axis] * a.count[axis];
      index[axis] = 0;
      done = 0; /* an outer axis may lead back */
    }
    if (axis == a.num) return 1;
  }
}

static int is_input_space(const hx_net* net, uint32_t space) {
  uint32_t i;
  for (i = 0; i < net->sections[HX_INPUTS].rows; ++i)
    if (hx_input_space(net, i) == space) return 1;
  return 0;
}

static const char* kind_of(const hx_net* net, uint32_t space) {
  return hx_string(net, hx_u32(row_at(net, HX_SPACES, space, sizeof(PlanSpace)) + offsetof(PlanSpace, kind)));
}

/* Reads only what an earlier step, a port, the weights or the state give; writes only what is a program's to write,
 * and over nothing that the same step reads, unless it is exactly the same view. */
static hx_status check_bytes(steps* s, uint32_t step) {
  hx_net* net = s->net;
  const uint8_t* row = step_row(net, step);
  const uint32_t first = hx_u32(row + offsetof(PlanStep, operands)),
                 inputs = hx_u32(row + offsetof(PlanStep, num_inputs)),
                 count = inputs + hx_u32(row + offsetof(PlanStep, num_outputs));
  int in_loop;
  const uint32_t limit = end_around(net, step, &in_loop);
  uint32_t i, other;
  for (i = 0; i < count; ++i) {
    const uint32_t id = hx_u32(row_at(net, HX_OPERANDS, first + i, 4));
    const char* kind;
    uint32_t space;
    hx_view view;
    if (id == PLAN_ABSENT) continue;
    space = tensor_space(net, id);
    kind = kind_of(net, space);
    if (i < inputs) {
      if (hx_same(kind, "weights") || hx_same(kind, "state") || hx_same(kind, "param") || is_input_space(net, space))
        continue;
      if (!is_written(s, id, limit))
        return s->work > MOST_WORK ? hx_fail(net, HX_UNSUPPORTED, "steps", step, "", "got too many steps to verify")
                                   : bad(net, step, "reads bytes that no earlier step has written");
      continue;
    }
    if (hx_same(kind, "weights") || hx_same(kind, "param") || is_input_space(net, space))
      return bad(net, step, "writes a tensor that is only read");
    hx_tensor(net, id, &view);
    if (overlaps_itself(&view)) return bad(net, step, "the elements of its output overlap");
    for (other = 0; other < i; ++other) {
      const uint32_t before = hx_u32(row_at(net, HX_OPERANDS, first + other, 4));
      if (before != PLAN_ABSENT && collide(net, before, id, other < inputs))
        return bad(net, step, "operands overlap: need the same view or none of its bytes");
    }
  }
  return HX_OK;
}

/* ---- kernels ---- */

static hx_status check_blocks(hx_net* net, uint32_t step) {
  const uint8_t* row = step_row(net, step);
  uint32_t at = hx_u32(row + offsetof(PlanStep, operands));
  const uint32_t end =
      at + hx_u32(row + offsetof(PlanStep, num_inputs)) + hx_u32(row + offsetof(PlanStep, num_outputs));
  hx_status status = HX_OK;
  for (; at < end && status == HX_OK; ++at) {
    const uint32_t id = hx_u32(row_at(net, HX_OPERANDS, at, 4));
    if (id != PLAN_ABSENT) status = hx_verify_operand(net, step, id);
  }
  return status;
}

static hx_status check_kernel(hx_net* net, uint32_t step) {
  const uint8_t* row = step_row(net, step);
  const int axis = hx_signed(hx_u32(row + offsetof(PlanStep, cut_axis)));
  const char* name = hx_string(net, hx_u32(row + offsetof(PlanStep, kernel)));
  uint32_t words, i, rings = 0;
  hx_call call;
  hx_view view;
  hx_status status;
  int in_loop;
  hx_step(net, step, &call);
  if (!call.kernel) return hx_fail(net, HX_UNSUPPORTED, "steps", step, name, "kernel: this build has not got it");
  words = call.activation ? call.activation->num_numbers : call.kernel->attrs_words;
  if (hx_u32(row + offsetof(PlanStep, attrs_bytes)) != 8 * words) return bad(net, step, "attrs: got another size");
  if (call.num_outputs != 1) return bad(net, step, "outputs: need 1");
  status = call.kernel->check(&call);
  if (status != HX_OK) return status;
  for (i = 0; i < call.num_inputs + 1; ++i) rings += hx_operand(&call, i, &view) && view.ring;
  if (rings && axis != 1) return bad(net, step, "cut: need axis 1 for rings");
  if (axis < 0) return HX_OK;
  hx_output(&call, 0, &view);
  if (axis >= view.rank || !(call.kernel->cuts >> axis & 1))
    return bad(net, step, "cut: need an axis along which the kernel can be cut");
  end_around(net, step, &in_loop);
  if (!in_loop && hx_i64(row + offsetof(PlanStep, end)) > view.shape[axis])
    return bad(net, step, "cut: need a range inside of the output");
  return HX_OK;
}

/* Whether a run finds the rows it needs in rings, and no more than they hold. */
static hx_status check_run(hx_net* net, uint32_t step, int axis, hx_range range) {
  hx_call call;
  uint32_t i;
  hx_step(net, step, &call);
  for (i = 0; i < call.num_inputs + 1; ++i) {
    hx_range used = range;
    hx_view view;
    if (!hx_operand(&call, i, &view) || !view.ring) continue;
    if (i == call.num_inputs && call.kernel->needs == HX_NEEDS_ORDER) continue; /* its last row is what counts */
    if (i < call.num_inputs) used = hx_needed(&call, i, axis, range);
    if (used.end - used.begin > view.ring) return bad(net, step, "got a ring of fewer rows than it needs");
    if (i < call.num_inputs && !(i == 0 && call.kernel->needs == HX_NEEDS_ROWS) &&
        (used.begin != range.begin || used.end != range.end))
      return bad(net, step, "got a ring, need all rows");
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
    if (axis == 1) status = check_run(net, step, axis, range);
  return status;
}

hx_status hx_verify_steps(hx_net* net) {
  const uint32_t num = net->sections[HX_STEPS].rows;
  uint32_t first_operand = 0;
  uint32_t i, next_block = 0;
  steps s;
  hx_status status = check_loops(net);
  s.net = net;
  s.num_steps = num;
  s.work = 0;
  for (i = 0; i < num && status == HX_OK; ++i) {
    int in_loop;
    const uint8_t* row = step_row(net, i);
    end_around(net, i, &in_loop);
    status = check_fields(net, i, first_operand, in_loop);
    first_operand += hx_u32(row + offsetof(PlanStep, num_inputs)) + hx_u32(row + offsetof(PlanStep, num_outputs));
  }
  if (status != HX_OK) return status;
  if (first_operand != net->sections[HX_OPERANDS].rows)
    return hx_fail(net, HX_BAD_PLAN, "operands", 0, "", "need those of the steps");
  status = hx_verify_blocks(net);
  for (i = 0; i < num && status == HX_OK; ++i) {
    status = check_blocks(net, i);
    if (status == HX_OK) status = hx_unpack_blocks(net, &next_block, i); /* kernels look at weights */
    if (status == HX_OK) status = check_kernel(net, i);
  }
  for (i = 0; i < num && status == HX_OK; ++i) status = check_bytes(&s, i);
  if (status == HX_OK) status = check_runs(net);
  if (status == HX_OK) status = hx_verify_streamed_ports(net);
  for (i = 0; i < net->sections[HX_OUTPUTS].rows && status == HX_OK; ++i)
    if (!is_written(&s, hx_u32(row_at(net, HX_OUTPUTS, i, sizeof(PlanPort)) + offsetof(PlanPort, tensor)), num))
      status = hx_fail(net, HX_BAD_PLAN, "outputs", i, hx_output_name(net, i), "no step writes all of it");
  return status;
}
