// The plan of a call of scaled_dot_product_attention, made by prepare().
//
// The output's axes except the last are batch axes, then the axis of queries. The outer axes select a matrix of keys
// and values. Along the other axes, the inner ones, all queries use the same matrix: for example the queries of several
// heads that share their keys.
#pragma once

#include "cpu/matmul/gemm.h"

namespace hexane::cpu {

struct AttentionAttributes {
  double scale;
  int64_t causal;
  int64_t zero_hidden;
  double hidden;
};

struct AttentionAxis {  // strides of each operand in bytes, 0 where broadcast
  int64_t extent;
  int64_t query, key, value, mask, out;
};

struct AttentionState {
  int num_axes, num_outer;
  AttentionAxis axes[8];
  int64_t num_keys, depth, width;  // S, E, V.
  int64_t query_column;            // Strides in bytes.
  int64_t key_row, key_column;
  int64_t value_row, value_column;
  int64_t mask_column;
  bool masked, causal, zero_hidden;
  bool direct;           // Keys and values are read in place, because few queries use the same keys.
  bool shared;           // Keys and values are packed once per call, not once per piece of the output.
  int64_t num_matrices;  // The product of the extents of the outer axes.
  int64_t block_rows;    // Queries in a block.
  // Bytes of one panel and of all panels of packed keys [depth][num_keys] and values [num_keys][width].
  int64_t key_panel_bytes, value_panel_bytes, key_bytes, value_bytes;

  const Arithmetic* arithmetic;
  SoftmaxMaps maps;  // tables of the engine's softmax

  int64_t row_floats() const { return ceil_div(num_keys, kPanelLanes) * kPanelLanes; }  // floats per row of scores
};

Prepared prepare_attention(const Call& call);
Prepared prepare_bf16_attention(const Call& call);
Prepared prepare_engine_attention(const Call& call);
void attention_cuts(const Call& call, Cuts& cuts);
Box attention_needs(const Call& call, int input, const Box& out);
int64_t attention_cost(const Call& call);
int64_t attention_scratch(const Call& call);
int64_t attention_shared_scratch(const Call& call);
void attention_begin(const Call& call, std::byte* shared);

// A piece of the output: a range of each axis.
struct AttentionBox {
  Range axes[8];
  int64_t num_outer = 1, num_rows = 1;  // index combinations of the outer axes, and of the inner axes
};
AttentionBox attention_box(const AttentionState& s, int axis, Range range);

struct AttentionOffsets {
  int64_t query = 0, key = 0, value = 0, mask = 0, out = 0;
  int64_t matrix = 0;    // Index of the pair of matrices: keys and values.
  int64_t position = 0;  // Position of the query along its axis, for the causal mask.
};
// Returns `from` moved by the offsets of index combination number `index` of the box's axes [first, last).
AttentionOffsets attention_offsets(const AttentionState& s, const AttentionBox& box, int first, int last, int64_t index,
                                   AttentionOffsets from);

// Packs the matrix of keys at offset at.key and the matrix of values at at.value.
void pack_attention(const Call& call, const AttentionOffsets& at, std::byte* keys, std::byte* values);

}  // namespace hexane::cpu
