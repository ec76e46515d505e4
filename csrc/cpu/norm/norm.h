// Shared by the normalisations: checks of dense operands, and the pieces of a tensor seen as (outer, channels, inner).
#pragma once

#include <algorithm>

#include "cpu/operand.h"

namespace hexane::cpu {

bool given(const Call& call, size_t input);

// One input and up to `most - 1` more, dense, an output like the input.
void check_norm(const char* kernel, const Call& call, size_t least, size_t most);
void check_per_channel(const char* kernel, const Call& call, int64_t channels);

// The product of the extents of axes [begin, end).
int64_t product(const Tensor& tensor, int begin, int end);

// A piece of a call, within (outer, channels, inner): for each of `num_blocks` blocks, the outer indices
// [begin, end) + block * step.
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

template <int kPicoseconds, int kOfRow>  // for each element, and nanoseconds for each row
int64_t norm_cost(const Call& call) {
  const Tensor& out = call.outputs[0];
  const int64_t size = out.size(), row = std::max<int64_t>(out.rank ? out.shape[out.rank - 1] : 1, 1);
  return 50 + size * kPicoseconds / 1000 + size / row * kOfRow;
}

}  // namespace hexane::cpu
