// Checks of the normalisations, and their division into pieces.
#include "cpu/norm/norm.h"

namespace hexane::cpu {

bool given(const Call& call, size_t input) { return input < call.inputs.size() && call.inputs[input].present(); }

void check_norm(const char* kernel, const Call& call, size_t least, size_t most) {
  if (call.inputs.size() < least || call.inputs.size() > most || call.outputs.size() != 1)
    fail(kernel, "operands: got ", call.inputs.size(), " inputs and ", call.outputs.size(), " outputs, need ", least,
         " to ", most, " and 1");
  check_dense(kernel, "input", call.inputs[0]);
  check_dense(kernel, "output", call.outputs[0]);
  check_same_shape(kernel, call.outputs[0], call.inputs[0]);
  for (size_t i = 1; i < most; ++i) {
    if (given(call, i))
      check_dense(kernel, "parameter", call.inputs[i]);
    else if (i < least)
      fail(kernel, "parameter ", i, ": got none, need an operand");
  }
}

void check_per_channel(const char* kernel, const Call& call, int64_t channels) {
  for (size_t i = 1; i < call.inputs.size(); ++i)
    if (given(call, i) && (call.inputs[i].rank != 1 || call.inputs[i].shape[0] != channels))
      fail(kernel, "parameter ", i, " shape: got ", shape_text(call.inputs[i]), ", need (", channels, ",)");
}

int64_t product(const Tensor& tensor, int begin, int end) {
  int64_t n = 1;
  for (int i = begin; i < end; ++i) n *= tensor.shape[i];
  return n;
}

Piece make_piece(const Tensor& x, int channel_axis, int cut, Range range) {
  Piece piece;
  piece.outer = product(x, 0, channel_axis);
  piece.channels = channel_axis < x.rank ? x.shape[channel_axis] : 1;
  piece.inner = channel_axis < x.rank ? product(x, channel_axis + 1, x.rank) : 1;
  piece.num_blocks = 1, piece.step = 0, piece.begin = 0, piece.end = piece.outer;
  piece.first_channel = 0, piece.last_channel = piece.channels;
  if (cut >= 0 && cut < channel_axis) {
    const int64_t below = product(x, cut + 1, channel_axis);
    piece.num_blocks = product(x, 0, cut);
    piece.step = x.shape[cut] * below;
    piece.begin = range.begin * below, piece.end = range.end * below;
  } else if (cut == channel_axis && cut < x.rank) {
    piece.first_channel = range.begin, piece.last_channel = range.end;
  }
  return piece;
}

void cut_before(const Call& call, Cuts& cuts, int end) {
  const Tensor& out = call.outputs[0];
  for (int axis = 0; axis < end; ++axis)
    if (out.shape[axis] > 1) cuts.add(axis, out.shape[axis]);
}

}  // namespace hexane::cpu
