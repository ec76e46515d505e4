// The prepared state of a call of `recurrent`: the extents of the network, and the layouts of packed weights and of
// scratch.
//
// x of a block of steps       packed weight          gates of the block           packed recurrent weight
// [steps * batch, input]  x  [input, gates * H]  =  [steps * batch, gates * H]    [H, gates * H]
//                                                     one step after the other: += state [batch, H] x the recurrent
//                                                     weight, functions, the next state, a row of y
#pragma once

#include <vector>

#include "cpu/matmul/gemm.h"

namespace hexane::cpu {

enum class Cell { kRnn, kGru, kLstm };

struct RecurrentAttributes {
  uint64_t cell;  // "rnn", "gru" or "lstm"
  int64_t batch_first, reverse, linear_before_reset;
  double clip;
  IntList activations;  // indices in kActivations, for each direction
};

inline constexpr const char* kActivations[] = {"relu", "sigmoid", "sigmoid_hard", "softplus", "softsign", "tanh"};

// Indices of the operands in a call.
struct RecurrentInputs {
  enum { kX, kWeight, kRecurrent, kBias, kLengths, kHidden, kCell, kPeephole, kCount };
};

struct RecurrentFunction {
  RowFunction apply;
  float alpha, beta;
};

// A matrix in panels and its bias, in the packed weights of one direction. Offsets are in bytes.
struct PackedMatrix {
  int64_t first_row, columns, k;  // rows [first_row, first_row + columns) of the weight
  int64_t panel_bytes, panels, bias;
  bool recurrent;

  int64_t panels_bytes() const { return panel_bytes * ceil_div(columns, kPanelLanes); }
  int64_t bias_floats() const { return ceil_div(columns, kPanelLanes) * kPanelLanes; }
};

struct RecurrentState {
  Cell cell;
  int64_t gates, time, directions, batch, input, hidden;
  int64_t width() const { return gates * hidden; }
  int time_axis, batch_axis;         // Axes of x; y has the same time_axis.
  int state_direction, state_batch;  // The axes of states.
  int y_direction, y_batch;
  bool reverse, linear, clips, half_panels, dense_x, keeps_sequence, is_packed;
  float clip;
  std::vector<RecurrentFunction> functions;  // functions in the order of the attribute `activations`

  PackedMatrix x_matrix, h_matrix, last_matrix;  // A GRU uses last_matrix for gate `new`.
  int64_t direction_bytes;                       // Bytes of one direction's packed weights.
  Block packed;

  int64_t block_steps;
  // Scratch, in floats: gates | product | hidden | cell | reset hidden | x | peephole.
  int64_t product_at, hidden_at, cell_at, reset_at, x_at, peephole_at, scratch_floats;
};

Prepared prepare_recurrent(const Call& call);
int64_t recurrent_cost(const Call& call);
int64_t recurrent_scratch(const Call& call);
int64_t recurrent_shared_scratch(const Call& call);
void recurrent_begin(const Call& call, std::byte* shared);

}  // namespace hexane::cpu
