/* recurrent: an RNN, a GRU or an LSTM over all steps in fp32, of one direction or both. The kernel does the same
 * operations as csrc/cpu/recurrent/recurrent.cpp, without scratch: the outputs for the last states hold the current
 * states, and a step computes the next hidden state in its row of y. */
#include "../internal.h"

enum { CELL, BATCH_FIRST, REVERSE, LINEAR, CLIP, ACTIVATIONS, WORDS = ACTIVATIONS + HX_LIST_WORDS };
enum { X, WEIGHT, RECURRENT, BIAS, LENGTHS, HIDDEN, STATE, PEEPHOLE, MOST_INPUTS };
enum { RNN, GRU, LSTM, CELLS };
enum { Y, LAST_HIDDEN, LAST_STATE, MOST_OUTPUTS }; /* LAST_STATE of a GRU is scratch: the hidden state times `reset` */

/* The address and the strides in bytes of an operand. */
typedef struct place {
  uint8_t* data;
  int32_t strides[4];
} place;

typedef struct network {
  place in[MOST_INPUTS], out[MOST_OUTPUTS];
  int has[MOST_INPUTS];
  int cell, is_linear, is_reverse, keeps_sequence;
  int batch, time, y_batch, y_direction, y_time; /* axes of x and of y */
  int state_batch, state_direction;
  int32_t steps, items, inputs, hidden, gates, directions;
  float clip; /* 0: no clipping */
} network;

static int cell_of(const hx_call* call) { return hx_index_of(hx_attr_s(call, CELL), "rnn\0gru\0lstm\0"); }

static void put_place(const hx_view* view, place* to) {
  int axis;
  to->data = view->data;
  for (axis = 0; axis < 4; ++axis) to->strides[axis] = axis < view->rank ? view->strides[axis] : 0;
}

/* Reads the operands. x and the recurrent weight have to have three axes. */
static void describe(const hx_call* call, network* n) {
  const int batch_first = hx_attr_i(call, BATCH_FIRST) != 0;
  uint32_t i;
  hx_view view;
  memset(n, 0, sizeof *n);
  n->cell = cell_of(call);
  n->gates = n->cell == RNN ? 1 : n->cell == GRU ? 3 : 4;
  n->is_linear = hx_attr_i(call, LINEAR) != 0;
  n->is_reverse = hx_attr_i(call, REVERSE) != 0;
  n->clip = hx_attr_f(call, CLIP);
  n->time = batch_first ? 1 : 0;
  n->batch = 1 - n->time;
  n->y_time = n->time;
  n->y_batch = batch_first ? 0 : 2;
  n->y_direction = batch_first ? 2 : 1;
  n->state_direction = n->time;
  n->state_batch = n->batch;
  for (i = 0; i < MOST_INPUTS; ++i) {
    n->has[i] = hx_input(call, i, &view);
    if (!n->has[i]) continue;
    put_place(&view, &n->in[i]);
    if (i == X) {
      n->steps = view.shape[n->time];
      n->items = view.shape[n->batch];
      n->inputs = view.shape[2];
    } else if (i == RECURRENT) {
      n->directions = view.shape[0];
      n->hidden = view.shape[2];
    }
  }
  for (i = 0; i < call->num_outputs; ++i) {
    hx_output(call, i, &view);
    put_place(&view, &n->out[i]);
    if (i == Y) n->keeps_sequence = view.shape[n->y_time] == n->steps;
  }
}

HX_CHECK_FUNCTION int is_of(const hx_view* view, int rank, int32_t a, int32_t b, int32_t c) {
  return hx_is(view->dtype, HX_FP32) && !view->ring && view->rank == rank && hx_is_dense_inside(view) &&
         view->shape[0] == a && (rank < 2 || view->shape[1] == b) && (rank < 3 || view->shape[2] == c);
}

/* True if input i has this shape or is absent. */
HX_CHECK_FUNCTION int is_input(const hx_call* call, uint32_t i, int rank, int32_t a, int32_t b, int32_t c) {
  hx_view view;
  return !hx_input(call, i, &view) || is_of(&view, rank, a, b, c);
}

/* True if operand i has the shape of a state or is absent. */
HX_CHECK_FUNCTION int is_state(const hx_call* call, const network* n, uint32_t i) {
  hx_view view;
  if (!hx_operand(call, i, &view)) return 1;
  return n->batch == 0 ? is_of(&view, 3, n->items, n->directions, n->hidden)
                       : is_of(&view, 3, n->directions, n->items, n->hidden);
}

HX_CHECK_FUNCTION hx_status check_outputs(const hx_call* call, const network* n) {
  hx_view view;
  if (!is_state(call, n, call->num_inputs + LAST_HIDDEN) ||
      (n->cell == LSTM && !is_state(call, n, call->num_inputs + LAST_STATE)))
    return hx_refuse(call, "states: need dense rows of fp32 for each direction and item");
  if (n->cell == GRU && hx_output(call, LAST_STATE, &view) && !is_of(&view, 1, n->hidden, 0, 0))
    return hx_refuse(call, "room: need the fp32 of one hidden state");
  hx_output(call, Y, &view);
  if (view.rank != 4 || !hx_is(view.dtype, HX_FP32) || view.ring || !hx_is_dense_inside(&view) ||
      view.shape[n->y_direction] != n->directions || view.shape[n->y_batch] != n->items || view.shape[3] != n->hidden ||
      (!n->keeps_sequence && view.shape[n->y_time] != 1))
    return hx_refuse(call, "y: need dense rows of fp32 for all steps, or for one");
  return HX_OK;
}

HX_CHECK_FUNCTION hx_status check_shapes(const hx_call* call, const network* n) {
  const int32_t rows = n->hidden > INT32_MAX / 8 ? 0 : n->gates * n->hidden, d = n->directions;
  hx_view view;
  if (n->steps < 1 || n->items < 1 || n->inputs < 1 || rows < 1 || d < 1 || d > 2)
    return hx_refuse(call, "shapes: need steps, items, inputs and units, and 1 or 2 directions");
  hx_input(call, X, &view);
  if (!is_of(&view, 3, view.shape[0], view.shape[1], view.shape[2]))
    return hx_refuse(call, "x: need dense rows of fp32");
  if (!is_input(call, WEIGHT, 3, d, rows, n->inputs) || !is_input(call, RECURRENT, 3, d, rows, n->hidden) ||
      !is_input(call, BIAS, 2, d, 2 * rows, 0) || !is_input(call, PEEPHOLE, 2, d, 3 * n->hidden, 0))
    return hx_refuse(call, "weights: need dense rows of fp32, one for each unit of each gate");
  if (hx_input(call, LENGTHS, &view) &&
      (!hx_is(view.dtype, HX_INT64) || view.rank != 1 || view.ring || view.shape[0] != n->items))
    return hx_refuse(call, "lengths: need one in int64 for each item");
  if ((n->has[HIDDEN] && !is_state(call, n, HIDDEN)) || (n->has[STATE] && !is_state(call, n, STATE)))
    return hx_refuse(call, "states: need dense rows of fp32 for each direction and item");
  return check_outputs(call, n);
}

/* Checks that outputs and inputs share no memory. Only a last state may be the same view as the initial state. */
HX_CHECK_FUNCTION hx_status check_memory(const hx_call* call, int cell) {
  hx_view in, out;
  uint32_t i, k;
  for (k = 0; k < call->num_outputs; ++k)
    for (i = 0; i < call->num_inputs; ++i) {
      if (!hx_input(call, i, &in) || (k == LAST_HIDDEN && i == HIDDEN) ||
          (cell == LSTM && k == LAST_STATE && i == STATE))
        continue;
      hx_output(call, k, &out);
      if (in.space == out.space && in.offset == out.offset)
        return hx_refuse(call, "outputs: need memory of their own, or that of their state");
    }
  return HX_OK;
}

/* Returns the name of function i of the activations. One direction uses three functions, f[0] to f[2]. */
static const char* function_name(const hx_call* call, uint32_t i) {
  static const char* const kNames[] = {"relu", "sigmoid", "sigmoid_hard", "softplus", "softsign", "tanh"};
  const int32_t index = hx_attr_n(call, ACTIVATIONS + 1 + i);
  return index >= 0 && index < 6 ? kNames[index] : "";
}

HX_CHECK_FUNCTION hx_status check(const hx_call* call) {
  const int cell = hx_is_string(call, CELL) ? cell_of(call) : CELLS;
  const int32_t num = cell == RNN ? 1 : cell == GRU ? 2 : 3;
  const float clip = hx_attr_f(call, CLIP);
  network n;
  hx_view view;
  int32_t i;
  hx_status status;
  if (cell == CELLS) return hx_refuse(call, "cell: need rnn, gru or lstm");
  if (call->num_inputs < 3 || call->num_inputs > (cell == LSTM ? MOST_INPUTS : HIDDEN + 1u))
    return hx_refuse(call, "inputs: got too few, or too many for the cell");
  if (cell == GRU && !hx_attr_i(call, LINEAR) && call->num_outputs == 2)
    return hx_refuse(call, "outputs: need room for a state, which compile --runtime c99 gives");
  if (call->num_outputs != (cell == LSTM || (cell == GRU && !hx_attr_i(call, LINEAR)) ? 3u : 2u))
    return hx_refuse(call, "outputs: got too few, or too many for the cell");
  for (i = X; i <= RECURRENT; ++i)
    if (!hx_input(call, (uint32_t)i, &view) || view.rank != 3) return hx_refuse(call, "need x and weights of 3 axes");
  if (!(clip >= 0)) return hx_refuse(call, "clip: need 0 or more");
  describe(call, &n);
  status = check_shapes(call, &n);
  if (status != HX_OK) return status;
  if (hx_attr_n(call, ACTIVATIONS) != num * n.directions)
    return hx_refuse(call, "activations: need those of the cell for each direction");
  for (i = 0; i < num * n.directions; ++i)
    if (!hx_find_activation(call->net, function_name(call, (uint32_t)i)))
      return hx_fail(call->net, HX_UNSUPPORTED, "steps", call->step, function_name(call, (uint32_t)i),
                     "activation: this build has not got it");
  return check_memory(call, cell);
}

/* The operands and states of one batch item in one direction. */
typedef struct line {
  const network* n;
  const hx_activation* f[3];
  const uint8_t *weight, *recurrent, *bias, *peephole; /* operands of this direction; null: absent */
  uint8_t *hidden, *state, *room;
} line;

/* Multiplies a row of a weight by a vector and adds its bias. */
static float product(const line* l, int is_recurrent, int32_t row, const uint8_t* vector) {
  const place* weight = &l->n->in[is_recurrent ? RECURRENT : WEIGHT];
  const int32_t k = is_recurrent ? l->n->hidden : l->n->inputs, block = hx_sum_block(k);
  const uint8_t* at = (is_recurrent ? l->recurrent : l->weight) + (size_t)row * (size_t)weight->strides[1];
  float total = 0, part = 0;
  int32_t i, terms = 0;
  for (i = 0; i < k; ++i, at += 4, vector += 4) {
    part = hx_multiply_add(hx_f32(vector), hx_f32(at), part);
    if (++terms < block) continue;
    total += part;
    part = 0;
    terms = 0;
  }
  total += part;
  if (l->bias) total += hx_f32(l->bias + 4 * (size_t)(is_recurrent ? l->n->gates * l->n->hidden + row : row));
  return total;
}

/* Returns a unit's gate before its activation: the sum of the products with x and with the hidden state. */
static float gate_of(const line* l, int gate, int32_t unit, const uint8_t* x, const uint8_t* hidden) {
  const int32_t row = gate * l->n->hidden + unit;
  const float of_x = product(l, 0, row, x);
  return of_x + product(l, 1, row, hidden);
}

static float apply(const line* l, int function, float x) {
  const int is_hard = hx_same(l->f[function]->name, "sigmoid_hard");
  return l->f[function]->apply(x, is_hard ? 0.2f : 0.0f, is_hard ? 0.5f : 0.0f);
}

static float opened(const line* l, int function, float x) {
  return apply(l, function, l->n->clip > 0 ? hx_clamp(x, -l->n->clip, l->n->clip) : x);
}

static float seen(const line* l, float gate, int which, int32_t unit, float state) {
  const size_t at = 4 * ((size_t)which * (size_t)l->n->hidden + (size_t)unit);
  return l->peephole ? gate + hx_f32(l->peephole + at) * state : gate;
}

/* Returns the next hidden state of a unit. Gates of an LSTM: input, output, forget, new. */
static float lstm_unit(const line* l, int32_t u, const uint8_t* x) {
  uint8_t* const at = l->state + 4 * (size_t)u;
  float state = hx_f32(at);
  const float enter = opened(l, 0, seen(l, gate_of(l, 0, u, x, l->hidden), 0, u, state));
  const float keep = opened(l, 0, seen(l, gate_of(l, 2, u, x, l->hidden), 2, u, state));
  const float made = enter * opened(l, 1, gate_of(l, 3, u, x, l->hidden));
  state = keep * state + made;
  hx_put_f32(at, state);
  return opened(l, 0, seen(l, gate_of(l, 1, u, x, l->hidden), 1, u, state)) * apply(l, 2, state);
}

/* Returns the next hidden state of a unit. Gates of a GRU: update, reset, new. */
static float gru_unit(const line* l, int32_t u, const uint8_t* x) {
  const int32_t row = 2 * l->n->hidden + u;
  const float old = hx_f32(l->hidden + 4 * (size_t)u);
  const float update = opened(l, 0, gate_of(l, 0, u, x, l->hidden));
  float made = product(l, 0, row, x);
  if (l->n->is_linear)
    made += opened(l, 0, gate_of(l, 1, u, x, l->hidden)) * product(l, 1, row, l->hidden);
  else
    made += product(l, 1, row, l->room);
  made = opened(l, 1, made);
  return (1.0f - update) * made + update * old;
}

static void advance(const line* l, const uint8_t* x, uint8_t* y) {
  const network* n = l->n;
  int32_t u;
  for (u = 0; l->room && u < n->hidden; ++u) {
    const size_t at = 4 * (size_t)u;
    hx_put_f32(l->room + at, opened(l, 0, gate_of(l, 1, u, x, l->hidden)) * hx_f32(l->hidden + at));
  }
  for (u = 0; u < n->hidden; ++u)
    hx_put_f32(y + 4 * (size_t)u, n->cell == LSTM  ? lstm_unit(l, u, x)
                                  : n->cell == GRU ? gru_unit(l, u, x)
                                                   : opened(l, 0, gate_of(l, 0, u, x, l->hidden)));
  memcpy(l->hidden, y, 4 * (size_t)n->hidden);
}

static uint8_t* state_row(const network* n, const place* state, int32_t direction, int32_t item) {
  return state->data + (size_t)direction * (size_t)state->strides[n->state_direction] +
         (size_t)item * (size_t)state->strides[n->state_batch];
}

/* Copies the initial state to the memory of the last state. */
static uint8_t* begin_state(const network* n, int input, const place* last, int32_t direction, int32_t item) {
  uint8_t* to = state_row(n, last, direction, item);
  const size_t bytes = 4 * (size_t)n->hidden;
  const uint8_t* from = n->has[input] ? state_row(n, &n->in[input], direction, item) : 0;
  if (!from)
    memset(to, 0, bytes);
  else if (from != to)
    memcpy(to, from, bytes);
  return to;
}

static void run_line(const network* n, line* l, int32_t direction, int32_t item) {
  const place *x = &n->in[X], *y = &n->out[Y], *lengths = &n->in[LENGTHS];
  const uint8_t* const first_x = x->data + (size_t)item * (size_t)x->strides[n->batch];
  uint8_t* const first_y =
      y->data + (size_t)direction * (size_t)y->strides[n->y_direction] + (size_t)item * (size_t)y->strides[n->y_batch];
  const int64_t length =
      n->has[LENGTHS] ? hx_i64(lengths->data + (size_t)item * (size_t)lengths->strides[0]) : n->steps;
  int32_t i;
  l->hidden = begin_state(n, HIDDEN, &n->out[LAST_HIDDEN], direction, item);
  l->state = n->cell == LSTM ? begin_state(n, STATE, &n->out[LAST_STATE], direction, item) : 0;
  for (i = 0; i < n->steps; ++i) {
    const int32_t t = n->is_reverse || direction == 1 ? n->steps - 1 - i : i;
    uint8_t* const to = first_y + (n->keeps_sequence ? (size_t)t * (size_t)y->strides[n->y_time] : 0);
    if (t < length)
      advance(l, first_x + (size_t)t * (size_t)x->strides[n->time], to);
    else if (n->keeps_sequence)
      memset(to, 0, 4 * (size_t)n->hidden);
  }
}

/* Returns the address of a direction in an operand; null if the operand is absent. */
static const uint8_t* of_direction(const network* n, int input, int32_t direction) {
  const place* there = &n->in[input];
  return n->has[input] ? there->data + (size_t)direction * (size_t)there->strides[0] : 0;
}

static void run(const hx_call* call, int cut, hx_range range) {
  network n;
  line l;
  int32_t direction, item;
  uint32_t i, each;
  (void)cut;
  (void)range;
  describe(call, &n);
  each = n.cell == RNN ? 1 : n.cell == GRU ? 2 : 3;
  memset(&l, 0, sizeof l);
  l.n = &n;
  l.room = n.cell == GRU && !n.is_linear ? n.out[LAST_STATE].data : 0;
  for (direction = 0; direction < n.directions; ++direction) {
    for (i = 0; i < each; ++i)
      l.f[i] = hx_find_activation(call->net, function_name(call, (uint32_t)direction * each + i));
    l.weight = of_direction(&n, WEIGHT, direction);
    l.recurrent = of_direction(&n, RECURRENT, direction);
    l.bias = of_direction(&n, BIAS, direction);
    l.peephole = of_direction(&n, PEEPHOLE, direction);
    for (item = 0; item < n.items; ++item) run_line(&n, &l, direction, item);
  }
}

const hx_kernel hx_kernel_recurrent = {"recurrent", WORDS, 0, HX_NEEDS_WHOLE, HX_CHECK(check), 0, run};
