// The checks and preparations of scaled_dot_product_attention, and the packing of its keys and values.
#include <algorithm>

#include "cpu/attention/attention.h"
#include "cpu/engine/engine_tile.h"
#include "cpu/matmul/bf16.h"
#include "cpu/region.h"

namespace hexane::cpu {
namespace {

constexpr const char* kName = "scaled_dot_product_attention";
constexpr int64_t kDirectRows = 4;   // For at most this many rows, packing costs more than it gains.
constexpr int64_t kFewMatrices = 4;  // For fewer matrices, threads share the queries of one matrix.
constexpr int64_t kBlockRows = 8 * kTileRows;
constexpr int64_t kScoreBytes = 256 << 10;  // scores of a block: a fraction of a core's second-level cache

int64_t stride_of(const Tensor& t, int axis) { return t.shape[axis] > 1 ? t.strides[axis] : 0; }

// Returns the stride of an operand along the output's axis `axis`. The operand's axes align with the output's last
// axes.
int64_t broadcast_stride(const Tensor& t, const Tensor& out, int axis, const char* what) {
  const int own = axis - (out.rank - t.rank);
  if (own < 0 || t.shape[own] == 1) return 0;
  if (t.shape[own] != out.shape[axis])
    fail(kName, what, ": got ", t.shape[own], " in axis ", own, ", need 1 or the output's ", out.shape[axis]);
  return stride_of(t, own);
}

// True if the rows or the columns of the matrix are dense, so it can be read in place.
bool readable(const Tensor& t, int64_t row_stride, int64_t column_stride, int64_t rows, int64_t columns) {
  return columns <= 1 || rows <= 1 || column_stride == item_bytes(t) || row_stride == item_bytes(t);
}

void check_operands(const Call& call) {
  if (call.inputs.size() < 3 || call.inputs.size() > 4 || call.outputs.size() != 1)
    fail(kName, "got ", call.inputs.size(), " inputs and ", call.outputs.size(), " outputs, need 3 or 4 and 1");
  const Tensor &query = call.inputs[0], &key = call.inputs[1], &value = call.inputs[2], &out = call.outputs[0];
  const char* names[] = {"query", "key", "value", "mask"};
  int rank = 0;
  for (int i = 0; i < 3; ++i) {
    check_operand(kName, names[i], call.inputs[i]);
    if (call.inputs[i].rank < 2) fail(kName, names[i], " rank: got ", call.inputs[i].rank, ", need 2 to 8");
    rank = std::max(rank, call.inputs[i].rank);
  }
  check_written(kName, "output", out);
  if (out.rank != rank) fail(kName, "output rank: got ", out.rank, ", need ", rank);
  const auto from_end = [](const Tensor& t, int i) { return t.shape[t.rank - i]; };
  if (from_end(query, 2) != from_end(out, 2) || from_end(query, 1) != from_end(key, 1) ||
      from_end(key, 2) != from_end(value, 2) || from_end(value, 1) != from_end(out, 1))
    fail(kName, "shapes: got ", shape_text(query), ", ", shape_text(key), ", ", shape_text(value), " -> ",
         shape_text(out), ", need (.., L, E), (.., S, E), (.., S, V) -> (.., L, V)");
  if (out.size() > 0 && from_end(out, 1) > 1 && out.strides[rank - 1] != item_bytes(out))
    fail(kName, "output: got a last stride of ", out.strides[rank - 1], " bytes, need ", item_bytes(out));
}

void check_mask(const Tensor& mask, const Tensor& key, const Tensor& out) {
  check_operand(kName, "mask", mask);
  if (mask.rank > out.rank) fail(kName, "mask rank: got ", mask.rank, ", need at most ", out.rank);
  const int64_t columns = mask.rank > 0 ? mask.shape[mask.rank - 1] : 1;
  if (columns != 1 && columns != key.shape[key.rank - 2])
    fail(kName, "mask: got ", columns, " in the last axis, need 1 or the keys' ", key.shape[key.rank - 2]);
}

std::shared_ptr<AttentionState> prepare_in(const Arithmetic& arithmetic, const Call& call) {
  check_operands(call);
  const Tensor &query = call.inputs[0], &key = call.inputs[1], &value = call.inputs[2], &out = call.outputs[0];
  const Tensor* mask = call.inputs.size() > 3 && call.inputs[3].present() ? &call.inputs[3] : nullptr;
  if (mask) check_mask(*mask, key, out);
  auto state = std::make_shared<AttentionState>();
  AttentionState& s = *state;
  s.arithmetic = &arithmetic;
  s.num_keys = key.shape[key.rank - 2];
  s.depth = key.shape[key.rank - 1];
  s.width = out.shape[out.rank - 1];
  s.query_column = stride_of(query, query.rank - 1);
  s.key_row = stride_of(key, key.rank - 2);
  s.key_column = stride_of(key, key.rank - 1);
  s.value_row = stride_of(value, value.rank - 2);
  s.value_column = stride_of(value, value.rank - 1);
  s.mask_column = mask && mask->rank > 0 ? stride_of(*mask, mask->rank - 1) : 0;
  s.masked = mask != nullptr;
  s.causal = call.attributes<AttentionAttributes>().causal != 0;
  s.zero_hidden = call.attributes<AttentionAttributes>().zero_hidden != 0;

  s.num_axes = out.rank - 1;
  s.num_outer = 0;
  for (int axis = 0; axis < s.num_axes; ++axis) {
    AttentionAxis& a = s.axes[axis];
    a = {out.shape[axis], broadcast_stride(query, out, axis, "query"), 0, 0, 0, stride_of(out, axis)};
    if (axis + 1 < s.num_axes) {
      a.key = broadcast_stride(key, out, axis, "key");
      a.value = broadcast_stride(value, out, axis, "value");
      if (a.key || a.value) s.num_outer = axis + 1;
    }
    if (mask) a.mask = broadcast_stride(*mask, out, axis, "mask");
  }
  int64_t rows = 1;
  s.num_matrices = 1;
  for (int axis = 0; axis < s.num_axes; ++axis) (axis < s.num_outer ? s.num_matrices : rows) *= s.axes[axis].extent;

  s.direct = &arithmetic == &ieee_arithmetic() && rows <= kDirectRows &&
             readable(key, s.key_row, s.key_column, s.num_keys, s.depth) &&
             readable(value, s.value_row, s.value_column, s.num_keys, s.width);
  s.shared = !s.direct && s.num_matrices < kFewMatrices;
  const int64_t key_panels = ceil_div(s.num_keys, kPanelLanes), value_panels = ceil_div(s.width, kPanelLanes);
  const int64_t matrices = s.shared ? std::max<int64_t>(s.num_matrices, 1) : 1;
  checked_product(kName, {s.depth, kPanelLanes, 4, std::max<int64_t>(key_panels, 1), matrices});
  checked_product(kName, {s.num_keys, kPanelLanes, 4, std::max<int64_t>(value_panels, 1), matrices});
  checked_product(kName, {s.depth, 4, kBlockRows});
  checked_product(kName, {s.num_keys, 4, kBlockRows});
  const auto panel_bytes = [&](int64_t k) {
    return arithmetic.column_items(1, arithmetic.items(k)) * kPanelLanes * 4 + arithmetic.end_bytes;
  };
  s.key_panel_bytes = panel_bytes(s.depth);
  s.value_panel_bytes = panel_bytes(s.num_keys);
  s.key_bytes = s.direct ? 0 : s.key_panel_bytes * key_panels;
  s.value_bytes = s.direct ? 0 : s.value_panel_bytes * value_panels;
  const int64_t tiles = std::max<int64_t>(1, kScoreBytes / (std::max<int64_t>(s.num_keys, 1) * 4 * kTileRows));
  s.block_rows = s.direct ? 1 : std::max<int64_t>(1, std::min({rows, tiles * kTileRows, kBlockRows}));
  return state;
}

}  // namespace

Prepared prepare_attention(const Call& call) { return prepare_in(ieee_arithmetic(), call); }

Prepared prepare_bf16_attention(const Call& call) { return prepare_in(bf16_arithmetic(), call); }

Prepared prepare_engine_attention(const Call& call) {
  auto state = prepare_in(engine_arithmetic(), call);
  state->maps = softmax_maps(call.numerics);
  return state;
}

void attention_cuts(const Call& call, Cuts& cuts) {
  const auto& s = call.state<AttentionState>();
  for (int axis = 0; axis + 1 < s.num_axes; ++axis)
    if (s.axes[axis].extent > 1) cuts.add(axis, s.axes[axis].extent);
  const int64_t queries = s.axes[s.num_axes - 1].extent, grain = s.direct ? 1 : kTileRows;
  if (queries > grain) cuts.add(s.num_axes - 1, queries, grain);
}

// query (.., L, E), key (.., S, E), value (.., S, V), mask (.., L, S) -> (.., L, V)
Box attention_needs(const Call& call, int input, const Box& out) {
  const Tensor& t = call.inputs[input];
  Box box = aligned(t, out);
  const auto all = [&](int axis) {
    if (axis >= 0) box[axis] = {0, t.shape[axis]};
  };
  if (input != 2) all(t.rank - 1);
  if (input == 1 || input == 2) all(t.rank - 2);
  return box;
}

int64_t attention_cost(const Call& call) {
  const auto& s = call.state<AttentionState>();
  int64_t scores = s.num_keys;
  for (int axis = 0; axis < s.num_axes; ++axis) scores *= s.axes[axis].extent;
  const int64_t packing = s.num_matrices * (s.key_bytes + s.value_bytes) / 8;
  return scores * (s.depth + s.width) / 50 + scores / 2 + packing + 100;
}

// Scratch of one thread: packed keys | packed values | queries | scores | a row of results.
int64_t attention_scratch(const Call& call) {
  const auto& s = call.state<AttentionState>();
  const int64_t panels = s.shared ? 0 : s.key_bytes + s.value_bytes;
  return panels + 4 * (s.block_rows * (s.depth + s.row_floats()) + ceil_div(s.width, 16) * 16);
}

int64_t attention_shared_scratch(const Call& call) {
  const auto& s = call.state<AttentionState>();
  return s.shared ? s.num_matrices * (s.key_bytes + s.value_bytes) : 0;
}

void attention_begin(const Call& call, std::byte* shared) {
  const auto& s = call.state<AttentionState>();
  if (!s.shared) return;
  const AttentionBox box = attention_box(s, -1, {});
  for (int64_t outer = 0; outer < box.num_outer; ++outer, shared += s.key_bytes + s.value_bytes)
    pack_attention(call, attention_offsets(s, box, 0, s.num_outer, outer, {}), shared, shared + s.key_bytes);
}

AttentionBox attention_box(const AttentionState& s, int axis, Range range) {
  AttentionBox box;
  for (int i = 0; i < s.num_axes; ++i) {
    box.axes[i] = i == axis ? range : Range{0, s.axes[i].extent};
    (i < s.num_outer ? box.num_outer : box.num_rows) *= box.axes[i].end - box.axes[i].begin;
  }
  return box;
}

AttentionOffsets attention_offsets(const AttentionState& s, const AttentionBox& box, int first, int last, int64_t index,
                                   AttentionOffsets from) {
  int64_t matrices = 1;
  for (int axis = last - 1; axis >= first; --axis) {
    const int64_t extent = box.axes[axis].end - box.axes[axis].begin;
    const int64_t i = box.axes[axis].begin + (axis == first ? index : index % extent);
    if (axis != first) index /= extent;
    const AttentionAxis& a = s.axes[axis];
    from.query += i * a.query;
    from.key += i * a.key;
    from.value += i * a.value;
    from.mask += i * a.mask;
    from.out += i * a.out;
    if (axis < s.num_outer) from.matrix += i * matrices;
    if (axis == s.num_axes - 1) from.position = i;
    matrices *= a.extent;
  }
  return from;
}

void pack_attention(const Call& call, const AttentionOffsets& at, std::byte* keys, std::byte* values) {
  const auto& s = call.state<AttentionState>();
  const Tensor &key = call.inputs[1], &value = call.inputs[2];
  pack_panels({key.data + at.key, key.dtype, {1, 1, s.depth}, {0, 0, s.key_column}, s.num_keys, s.key_row}, false, keys,
              s.key_panel_bytes, *s.arithmetic);
  pack_panels({value.data + at.value, value.dtype, {1, 1, s.num_keys}, {0, 0, s.value_row}, s.width, s.value_column},
              false, values, s.value_panel_bytes, *s.arithmetic);
}

}  // namespace hexane::cpu
