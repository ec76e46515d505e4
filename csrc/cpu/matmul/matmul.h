// Shared by matrix products of every dtype: which output axes walk over rows of x, and which over matrices of y.
#pragma once

#include "cpu/matmul/gemm.h"

namespace hexane::cpu {

// An axis of the output except the last: its strides in each operand, in bytes. y_batch counts packed matrices.
struct Axis {
  int64_t extent;
  int64_t x, y, out;
  int64_t y_batch;
  int64_t row;  // stride in rows of the output
  int64_t extra[kMaxSlots];
};

struct MatmulShape {
  int64_t m, n, k;
  int num_axes;   // Number of axes: batch axes, then M.
  int num_outer;  // Leading axes that select a matrix of y; all later axes count rows of one product.
  int64_t rows_per_y;
  int64_t num_y_batches;  // different matrices in y
  Axis axes[kMaxRank];
  int64_t k_stride_x, k_stride_y, n_stride_y;
};

// Checks x, y, the output and the strides of the operands that the epilogue adds; throws Error.
void set_shape(const char* kernel, MatmulShape& s, const Call& call, bool transpose_x, bool transpose_y,
               const ResolvedEpilogue& epilogue);

struct Offsets {
  int64_t x, y, y_batch, row, out;
  int64_t extra[kMaxSlots];
};

// Returns `from` moved by the offsets of element `index`, counted over the box of axes [first, last).
Offsets offsets(const MatmulShape& s, int num_extra, const Range* box, int first, int last, int64_t index,
                Offsets from);

// Lists the axes along which a product may be cut. batch_bytes: bytes of one packed matrix of y. decodes: each piece
// decodes its own columns of y. grain: pieces have multiples of this many columns.
void matmul_cuts(const Call& call, const MatmulShape& s, int64_t batch_bytes, Cuts& cuts, bool decodes = false,
                 int64_t grain = kPanelLanes);
// Returns the box of an input for a box of the output. `first_extra`: the first input that the epilogue adds. Inputs
// between y and `first_extra` have one element per column.
Box matmul_needs(const Call& call, int input, int first_extra, const Box& out, bool transpose_x, bool transpose_y);

// Returns the number of distinct matrices along a batch axis of y.
inline int64_t packed_extent(const Tensor& y, int axis) {
  return y.shape[axis] > 1 && y.strides[axis] == 0 ? 1 : y.shape[axis];
}

// Returns the data of matrix number `batch` of y. A matrix that is broadcast along a batch axis counts once.
inline const std::byte* y_matrix(const Tensor& y, int64_t batch) {
  const std::byte* from = y.data;
  for (int axis = y.rank - 3; axis >= 0; --axis) {
    const int64_t extent = packed_extent(y, axis);
    from += batch % extent * y.strides[axis];
    batch /= extent;
  }
  return from;
}

// Calls f(data of the matrix) for each distinct matrix in y.
template <class F>
void for_each_y(const Tensor& y, const MatmulShape& s, F&& f) {
  for (int64_t batch = 0; batch < s.num_y_batches; ++batch) f(y_matrix(y, batch));
}

}  // namespace hexane::cpu
