// Shared by the normalisations: checks of dense operands, and the pieces of a tensor seen as (outer, channels, inner).
#pragma once

#include <algorithm>

#include "cpu/operand.h"

namespace hexane::cpu {

bool given(const Call& call, size_t input);

// Throws Error unless there are `least` to `most` dense inputs, and one output with the first input's shape and dtype.
void check_norm(const char* kernel, const Call& call, size_t least, size_t most);
void check_per_channel(const char* kernel, const Call& call, int64_t channels);

// Returns the product of the extents of axes [begin, end).
int64_t product(const Tensor& tensor, int begin, int end);

// A piece of a call, as ranges of (outer, channels, inner). The outer indices of a piece are [begin, end) + block *
// step for each block below num_blocks.
struct Piece {
  int64_t outer, channels, inner;
  int64_t num_blocks, step, begin, end;
  int64_t first_channel, last_channel;
};

Piece make_piece(const Tensor& x, int channel_axis, int cut, Range range);

template <class F>
void for_outer(const Piece& piece, const F& f) {
  for (int64_t block = 0; block < piece.num_blocks; ++block)
    for (int64_t o = piece.begin; o < piece.end; ++o) f(block * piece.step + o);
}

// Cuts along the axes before `end`.
void cut_before(const Call& call, Cuts& cuts, int end);

template <int kPicoseconds, int kOfRow>  // picoseconds for each element, nanoseconds for each row
int64_t norm_cost(const Call& call) {
  const Tensor& out = call.outputs[0];
  const int64_t size = out.size(), row = std::max<int64_t>(out.rank ? out.shape[out.rank - 1] : 1, 1);
  return 50 + size * kPicoseconds / 1000 + size / row * kOfRow;
}

}  // namespace hexane::cpu
