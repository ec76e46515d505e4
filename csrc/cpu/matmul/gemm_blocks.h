// A product whose right-hand side changes with every call. Each thread packs a block of the right-hand side right
// before use, into memory of its own that fits the second-level cache. So no thread waits for the packing of another
// thread, and the whole packed matrix never exists in memory. A block of terms is a block of the sum (sums.h), so
// results equal multiply() in gemm.h bit for bit.
#pragma once

#include "cpu/matmul/gemm.h"

#include <algorithm>
#include "cpu/sums.h"

namespace hexane::cpu {

inline constexpr int64_t kBlockRows = 44 * kTileRows;  // rows per packed block; the rows' partial sums follow the block
inline constexpr int64_t kBlockColumns = kTilePanels * kPanelLanes;

inline int64_t block_terms(int64_t k) { return std::min(k, kShortSum); }

// False for very long sums: their blocks have more terms than a packed block.
inline bool fits_blocks(int64_t k) { return sum_block(k) == kShortSum; }

// Returns the floats of scratch: the packed block, and the sums of its rows if there are more blocks.
inline int64_t block_floats(int64_t k, int64_t num_rows) {
  return kBlockColumns * (block_terms(k) + (k > kShortSum ? std::min(num_rows, kBlockRows) : 0));
}

// Addresses of the rows that are multiplied with a packed block.
struct BlockRows {
  const float* a[kBlockRows];
  std::byte* out[kBlockRows];
  const std::byte* extra[kMaxSlots][kBlockRows];
};

// Like multiply(), for a right-hand side with k rows that is not packed. pack(columns, terms, block) packs a block of
// it into dense panels. locate(row, i, rows) sets entry i of `rows` to the addresses of row `row`.
template <class Pack, class Locate>
void multiply_blocks(Tile& tile, int64_t k, int64_t num_rows, Range columns, float* scratch, Pack&& pack,
                     Locate&& locate) {
  const int64_t terms = block_terms(k);
  float* sums = scratch + kBlockColumns * terms;
  BlockRows at;
  const float* a[kTileRows];
  tile.a = a;
  tile.panels = reinterpret_cast<const std::byte*>(scratch);
  tile.sums_pitch = kBlockColumns;
  const auto multiply_block = [&](int64_t count, int64_t first_term) {
    const Split tiles(count, ceil_div(count, kTileRows));
    for (int64_t t = 0, row = 0; row < count; row += tile.rows, ++t) {
      tile.rows = static_cast<int>(tiles[t]);
      tile.sums = k > terms ? sums + row * kBlockColumns : nullptr;
      for (int i = 0; i < tile.rows; ++i) {
        a[i] = at.a[row + i] + first_term;
        tile.out[i] = at.out[row + i];
        for (int e = 0; e < tile.epilogue->num_extra; ++e) tile.extra[e][i] = at.extra[e][row + i];
      }
      gemm_ops().tile_fp32(tile);
    }
  };
  const Split blocks(num_rows, ceil_div(num_rows, kBlockRows));
  for (int64_t b = 0, row = 0; row < num_rows; row += blocks[b++]) {
    for (int64_t i = 0; i < blocks[b]; ++i) locate(row + i, i, at);
    for (int64_t column = columns.begin; column < columns.end; column += kBlockColumns) {
      const Range some = {column, std::min(column + kBlockColumns, columns.end)};
      tile.column = column;
      tile.num_panels = static_cast<int>(ceil_div(some.end - some.begin, kPanelLanes));
      int64_t begin = 0;
      do {
        tile.length = std::min(terms, k - begin);
        tile.panel_bytes = tile.length * kPanelLanes * 4;
        tile.first_block = begin == 0;
        tile.last_block = begin + tile.length == k;
        pack(some, Range{begin, begin + tile.length}, scratch);
        multiply_block(blocks[b], begin);
        begin += tile.length;
      } while (begin < k);
    }
  }
}

// Packs a block of the columns of y, in the layout that multiply_blocks() expects.
inline void pack_block(const Columns& y, Range columns, Range terms, float* block) {
  Columns part = y;
  part.num_columns = columns.end - columns.begin;
  part.shape[2] = terms.end - terms.begin;
  part.from = y.from + columns.begin * y.column_stride + terms.begin * y.strides[2];
  pack_panels(part, false, reinterpret_cast<std::byte*>(block), part.shape[2] * kPanelLanes * 4);
}

}  // namespace hexane::cpu
