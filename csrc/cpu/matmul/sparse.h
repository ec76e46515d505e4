// The right-hand side of a matrix product with many zeros: a bit for each number, and the numbers with a set bit.
// Products use the stored form: a vector of numbers is spread to the lanes of the set bits, with 0 in the other lanes.
// The sums equal the sums of the whole matrix bit for bit.
//
//   64 columns, term 0:  mask 1011..   numbers a b c ..
//               term 1:  mask 0100..           d ..         The next 64 columns follow after the last term.
#pragma once

#include "cpu/matmul/encoded.h"

#include <algorithm>

namespace hexane::cpu {

inline constexpr int64_t kMaskColumns = 64;
inline constexpr int64_t kSparseEnd = 16;  // numbers of padding at the end, since whole vectors are read

struct SparsePanels {
  const std::byte* masks;  // Masks of 8 bytes, [groups of 64 columns][k]; the lowest bit is the first column.
  const float* numbers;    // Numbers with a set bit, in the order of the bits.
  const int64_t* first;    // Index of each group's first number.
  int64_t k;
};

struct SparseShape {
  int64_t k, columns;
  int64_t num_groups() const { return ceil_div(columns, kMaskColumns); }
};

// Checks the operands except the bits; throws Error.
SparseShape sparse_shape(const char* kernel, const Tensor& x, const Tensor& masks, const Tensor& numbers,
                         int64_t columns, bool transpose_x);
// Finds the first number of each group; throws Error unless there are as many numbers as set bits.
void find_groups(const char* kernel, const SparseShape& shape, const Tensor& masks, const Tensor& numbers,
                 int64_t* first);

// Functions that exist once for each instruction set.
struct SparseOps {
  int64_t spread_rows;  // For more rows of x than this, numbers are decoded first and not spread in each tile.
  // Computes some rows of the output. `tile` is set as for GemmOps, except its panels.
  void (*rows)(const Tile& tile, const SparsePanels& panels, Range columns);
  // Decodes the panels of these columns to floats, k * 16 floats for each panel.
  void (*decode)(const SparsePanels& panels, Range columns, float* to);
};
const SparseOps& sparse_ops();

// Like multiply() in gemm.h. `decoded`: scratch as for multiply_decoded(), used if there are more than spread_rows
// rows.
template <class Locate>
void multiply_sparse(Tile& tile, const SparsePanels& panels, int64_t num_rows, Range columns, float* decoded,
                     Locate&& locate) {
  if (num_rows > sparse_ops().spread_rows)
    return multiply_decoded(
        tile, panels.k, num_rows, columns, decoded, [&](Range some) { sparse_ops().decode(panels, some, decoded); },
        locate);
  const Split tiles(num_rows, ceil_div(num_rows, kTileRows));
  const int64_t step = num_rows > kTileRows ? kMaskColumns : columns.end - columns.begin;
  for (int64_t column = columns.begin; column < columns.end; column += step)
    for (int64_t i = 0, row = 0; row < num_rows; row += tile.rows, ++i) {
      tile.rows = static_cast<int>(tiles[i]);
      locate(row, tile.rows, tile);
      sparse_ops().rows(tile, panels, {column, std::min(columns.end, column + step)});
    }
}

}  // namespace hexane::cpu
