// Checks a call of `recurrent`, packs its weights and lays out its scratch.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "cpu/recurrent/recurrent.h"

namespace hexane::cpu {
namespace {

constexpr const char* kName = "recurrent";
constexpr int64_t kLeastBlock = 16 << 10, kMostBlock = 1 << 20;  // bytes of gates that are computed at once

using In = RecurrentInputs;

const Tensor* operand(const Call& call, size_t i) {
  return i < call.inputs.size() && call.inputs[i].present() ? &call.inputs[i] : nullptr;
}

void check_shape(const char* what, const Tensor& tensor, std::initializer_list<int64_t> need) {
  check_operand(kName, what, tensor);
  if (tensor.rank != static_cast<int>(need.size()) || !std::equal(need.begin(), need.end(), tensor.shape)) {
    std::string text;
    for (const int64_t extent : need) text += (text.empty() ? "" : ", ") + std::to_string(extent);
    fail(kName, what, ": got the shape ", shape_text(tensor), ", need (", text, ")");
  }
  if (tensor.ring) fail(kName, what, ": got a ring, need all rows");
  const int last = tensor.rank - 1;
  if (tensor.shape[last] > 1 && tensor.strides[last] != item_bytes(tensor))
    fail(kName, what, ": got a stride of ", tensor.strides[last], " bytes along the last axis, need it dense");
}

void check_operands(const Call& call, RecurrentState& s, bool batch_first) {
  const bool is_lstm = s.cell == Cell::kLstm;
  const size_t most = is_lstm ? In::kCount : In::kHidden + 1, outputs = is_lstm ? 3 : 2;
  const bool has_room = s.cell == Cell::kGru && call.outputs.size() == 3;  // output 2 is scratch of other runtimes
  if (call.inputs.size() < 3 || call.inputs.size() > most || call.outputs.size() != outputs + has_room)
    fail(kName, "got ", call.inputs.size(), " inputs and ", call.outputs.size(), " outputs, need 3 to ", most, " and ",
         outputs);
  const Tensor &x = call.inputs[In::kX], &weight = call.inputs[In::kWeight], &recurrent = call.inputs[In::kRecurrent];
  check_operand(kName, "x", x);
  check_operand(kName, "recurrent", recurrent);
  if (x.rank != 3 || recurrent.rank != 3)
    fail(kName, "got x ", shape_text(x), " and recurrent ", shape_text(recurrent), ", need 3 axes each");
  s.time_axis = batch_first ? 1 : 0;
  s.batch_axis = 1 - s.time_axis;
  s.state_direction = batch_first ? 1 : 0;
  s.state_batch = 1 - s.state_direction;
  s.y_direction = batch_first ? 2 : 1;
  s.y_batch = batch_first ? 0 : 2;
  s.time = x.shape[s.time_axis];
  s.batch = x.shape[s.batch_axis];
  s.input = x.shape[2];
  s.directions = recurrent.shape[0];
  s.hidden = recurrent.shape[2];
  if (s.time < 1 || s.batch < 1 || s.input < 1 || s.hidden < 1 || s.directions < 1 || s.directions > 2)
    fail(kName, "got x ", shape_text(x), " and recurrent ", shape_text(recurrent),
         ", need steps, items, inputs and units, and 1 or 2 directions");
  checked_product(kName, {s.time, s.batch, s.gates, s.hidden, 4});
  checked_product(kName, {s.gates, s.hidden + kPanelLanes, s.hidden + s.input, 8});
  const int64_t d = s.directions, n = s.batch, h = s.hidden;
  check_shape("x", x, {x.shape[0], x.shape[1], s.input});
  check_shape("weight", weight, {d, s.width(), s.input});
  check_shape("recurrent", recurrent, {d, s.width(), h});
  if (const Tensor* bias = operand(call, In::kBias)) check_shape("bias", *bias, {d, 2 * s.width()});
  if (const Tensor* lengths = operand(call, In::kLengths)) check_shape("lengths", *lengths, {n});
  const auto check_state = [&](const char* what, const Tensor& tensor) {
    if (batch_first)
      check_shape(what, tensor, {n, d, h});
    else
      check_shape(what, tensor, {d, n, h});
  };
  if (const Tensor* state = operand(call, In::kHidden)) check_state("initial state", *state);
  if (const Tensor* state = operand(call, In::kCell)) check_state("initial cell", *state);
  if (const Tensor* peephole = operand(call, In::kPeephole)) check_shape("peephole", *peephole, {d, 3 * h});
  const Tensor& y = call.outputs[0];
  const int64_t steps = y.rank == 4 ? y.shape[s.time_axis] : 0;
  s.keeps_sequence = steps == s.time;
  if (!s.keeps_sequence && steps != 1)
    fail(kName, "y: got the shape ", shape_text(y), ", need ", s.time, " steps, or 1");
  if (batch_first)
    check_shape("y", y, {n, steps, d, h});
  else
    check_shape("y", y, {steps, d, n, h});
  for (size_t i = 1; i < outputs; ++i) check_state("last state", call.outputs[i]);
  if (has_room) check_shape("room", call.outputs[2], {h});
  for (const Tensor& out : call.outputs) check_written(kName, "output", out);
}

void set_functions(const RecurrentAttributes& attrs, RecurrentState& s) {
  check_list(kName, "activations", attrs.activations);
  const int64_t each = s.cell == Cell::kLstm ? 3 : s.cell == Cell::kGru ? 2 : 1;
  if (attrs.activations.count != each * s.directions)
    fail(kName, "activations: got ", attrs.activations.count, ", need ", each * s.directions);
  for (int64_t i = 0; i < attrs.activations.count; ++i) {
    const int64_t index = attrs.activations.values[i];
    if (index < 0 || index >= static_cast<int64_t>(std::size(kActivations)))
      fail(kName, "activations: got number ", index, ", need less than ", std::size(kActivations));
    const std::string_view name = kActivations[index];
    const bool hard = name == "sigmoid_hard";
    s.functions.push_back({find_row_function(name), hard ? 0.2f : 0.0f, hard ? 0.5f : 0.0f});
  }
}

// Lays out the packed weights of one direction: its matrices, then their biases.
void lay_out_packed(const Call& call, RecurrentState& s) {
  const int64_t first = s.cell == Cell::kGru ? 2 * s.hidden : s.width();
  s.x_matrix = {0, s.width(), s.input, 0, 0, 0, false};
  s.h_matrix = {0, first, s.hidden, 0, 0, 0, true};
  s.last_matrix = {first, s.width() - first, s.hidden, 0, 0, 0, true};
  s.half_panels =
      call.inputs[In::kWeight].dtype == DType::kFp16 && s.width() * (s.hidden + s.input) * 4 > kInnerPanelBytes / 2;
  int64_t at = 0;
  for (PackedMatrix* m : {&s.x_matrix, &s.h_matrix, &s.last_matrix}) {
    m->panel_bytes = m->k * kPanelLanes * (s.half_panels ? 2 : 4);
    m->panels = at;
    at += m->panels_bytes();
  }
  at = ceil_div(at, 64) * 64;
  for (PackedMatrix* m : {&s.x_matrix, &s.h_matrix, &s.last_matrix}) {
    m->bias = at;
    at += m->bias_floats() * 4;
  }
  s.direction_bytes = ceil_div(at, 64) * 64;
}

void pack(const Call& call, const RecurrentState& s, std::byte* to) {
  for (int64_t d = 0; d < s.directions; ++d, to += s.direction_bytes)
    for (const PackedMatrix* m : {&s.x_matrix, &s.h_matrix, &s.last_matrix}) {
      if (m->columns == 0) continue;
      const Tensor& weight = call.inputs[m->recurrent ? In::kRecurrent : In::kWeight];
      const Columns columns = {weight.data + d * weight.strides[0] + m->first_row * weight.strides[1],
                               weight.dtype,
                               {1, 1, m->k},
                               {0, 0, item_bytes(weight)},
                               m->columns,
                               weight.strides[1]};
      pack_panels(columns, s.half_panels, to + m->panels, m->panel_bytes);
      float* bias = reinterpret_cast<float*>(to + m->bias);
      std::fill_n(bias, m->bias_floats(), 0.0f);
      if (const Tensor* given = operand(call, In::kBias)) {
        const int64_t first = (m->recurrent ? s.width() : 0) + m->first_row;
        gemm_ops().to_fp32(given->data + d * given->strides[0] + first * item_bytes(*given), given->dtype, m->columns,
                           bias);
      }
    }
}

// Lays out scratch. The gates of a block of steps take about a quarter of the weight's bytes, within 16 KiB to 1 MiB.
// The weight is read once per block.
void lay_out_scratch(const Call& call, RecurrentState& s) {
  const Tensor& x = call.inputs[In::kX];
  s.dense_x = x.dtype == DType::kFp32;
  const int64_t step = s.batch * s.width() * 4, weight = s.width() * s.input * 4;
  s.block_steps = std::clamp<int64_t>(std::clamp(weight / 4, kLeastBlock, kMostBlock) / step, 1, s.time);
  int64_t at = s.block_steps * s.batch * s.width();
  const auto place = [&](int64_t& place, int64_t floats) {
    place = ceil_div(at, 16) * 16;
    at = place + floats;
  };
  const int64_t states = s.batch * s.hidden;
  place(s.product_at, s.cell == Cell::kGru ? states : 0);
  place(s.hidden_at, states);
  place(s.cell_at, s.cell == Cell::kLstm ? states : 0);
  place(s.reset_at, s.cell == Cell::kGru ? states : 0);
  place(s.x_at, s.dense_x ? 0 : s.block_steps * s.batch * s.input);
  place(s.peephole_at, operand(call, In::kPeephole) ? 3 * s.hidden : 0);
  s.scratch_floats = at + kPanelLanes;
}

}  // namespace

Prepared prepare_recurrent(const Call& call) {
  auto state = std::make_shared<RecurrentState>();
  RecurrentState& s = *state;
  const auto& attrs = call.attributes<RecurrentAttributes>();
  const std::string_view cell = call.string(attrs.cell);
  if (cell != "rnn" && cell != "gru" && cell != "lstm")
    fail(kName, "cell: got '", cell, "', need 'rnn', 'gru' or 'lstm'");
  s.cell = cell == "rnn" ? Cell::kRnn : cell == "gru" ? Cell::kGru : Cell::kLstm;
  s.gates = s.cell == Cell::kRnn ? 1 : s.cell == Cell::kGru ? 3 : 4;
  s.reverse = attrs.reverse != 0;
  s.linear = attrs.linear_before_reset != 0;
  if (!(attrs.clip >= 0) || !std::isfinite(attrs.clip)) fail(kName, "clip: got ", attrs.clip, ", need 0 or more");
  s.clips = attrs.clip > 0;
  s.clip = static_cast<float>(attrs.clip);
  check_operands(call, s, attrs.batch_first != 0);
  set_functions(attrs, s);
  lay_out_packed(call, s);
  lay_out_scratch(call, s);
  const Tensor* bias = operand(call, In::kBias);
  s.is_packed = call.inputs[In::kWeight].constant && call.inputs[In::kRecurrent].constant && (!bias || bias->constant);
  if (s.is_packed && !call.asks) {
    Memory packed(static_cast<uint64_t>(s.direction_bytes * s.directions), "packed weights");
    pack(call, s, packed.data());
    s.packed = call.share(std::move(packed));
  }
  return state;
}

int64_t recurrent_cost(const Call& call) {
  const auto& s = call.state<RecurrentState>();
  const int64_t products = s.width() * (s.hidden + s.input) / 20;
  return s.time * s.directions * s.batch * (products + s.width() / 2 + 20);
}

int64_t recurrent_scratch(const Call& call) { return call.state<RecurrentState>().scratch_floats * 4; }

int64_t recurrent_shared_scratch(const Call& call) {
  const auto& s = call.state<RecurrentState>();
  return s.is_packed ? 0 : s.direction_bytes * s.directions;
}

void recurrent_begin(const Call& call, std::byte* shared) {
  const auto& s = call.state<RecurrentState>();
  if (!s.is_packed) pack(call, s, shared);
}

}  // namespace hexane::cpu
