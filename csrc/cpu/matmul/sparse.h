// The right-hand side of a matrix product with many zeros: a bit for each number, and the numbers with a set bit. They
// are multiplied as stored: a vector of them is spread to the lanes of the set bits, with 0 in the others. So the sums
// equal the whole matrix's to the bit.
//
//   64 columns, term 0:  mask 1011..   numbers a b c ..
//               term 1:  mask 0100..           d ..         Terms of the next 64 columns follow the last one of these.
#pragma once

#include "cpu/matmul/encoded.h"

#include <algorithm>

namespace hexane::cpu {

inline constexpr int64_t kMaskColumns = 64;  // of one mask
inline constexpr int64_t kSparseEnd = 16;    // numbers after the last one, since whole vectors are read

struct SparsePanels {
  const std::byte* masks;  // [groups of 64 columns][k], 8 bytes each, the lowest bit for the first column
  const float* numbers;    // those whose bit is set, in the order of the bits
  const int64_t* first;    // of each group's numbers
  int64_t k;
};

struct SparseShape {
  int64_t k, columns;
  int64_t num_groups() const { return ceil_div(columns, kMaskColumns); }
};

// Checks the operands but for the bits; throws Error.
SparseShape sparse_shape(const char* kernel, const Tensor& x, const Tensor& masks, const Tensor& numbers,
                         int64_t columns, bool transpose_x);
// Where the numbers of each group begin; throws Error unless there is one for each bit.
void find_groups(const char* kernel, const SparseShape& shape, const Tensor& masks, const Tensor& numbers,
                 int64_t* first);

// Functions that exist once for each instruction set.
struct SparseOps {
  int64_t spread_rows;  // most rows of x for which numbers are spread anew per tile; more rows decode them first
  // Some rows of the output; `tile` as for GemmOps, but for its panels.
  void (*rows)(const Tile& tile, const SparsePanels& panels, Range columns);
  // The panels of these columns as floats, k * 16 floats each.
  void (*decode)(const SparsePanels& panels, Range columns, float* to);
};
const SparseOps& sparse_ops();

// Like multiply() in gemm.h. decoded: as for multiply_decoded(), if there are more than spread_rows.
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
