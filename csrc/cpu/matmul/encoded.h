// The right-hand side of a matrix product in its stored form: integers with scales, or indices of tables of floats. An
// index may name one number for each of 2 or 4 neighbouring columns. If x has one row, numbers are decoded in
// registers. If x has more rows, a few panels at a time are decoded into memory that fits in caches.
//
// Panels have 16 columns, as in gemm.h. For each k, panels hold a byte of each column, or of each 2 or 4 columns that
// share an index; with four bits a byte holds the codes of two k, the first in its lower half. A decoded number is
// rounded once, like an element of a weight that is stored decoded.
#pragma once

#include "cpu/matmul/gemm.h"

#include <algorithm>

namespace hexane::cpu {

inline constexpr int64_t kTableColumns = 8;  // A table serves a multiple of this many columns.
// Entries of a table with indices of four bits, and of the two kinds of tables with indices of eight bits.
inline constexpr int64_t kTableEntries = 16, kLongTableEntries = 64, kWideTableEntries = 256;

struct EncodedPanels {
  const std::byte* panels;
  // Scales [blocks][columns rounded up to panels], or tables [groups]. A table has its entries in fp32, then in fp16:
  // the lower bytes of all entries, then the upper bytes (wide tables: two bytes for each entry). The float after all
  // tables is not 0 if fp16 holds every entry exactly. Tables of vectors have only fp32, and the numbers of an entry
  // are adjacent.
  const float* numbers;
  int64_t panel_bytes;
  int64_t k, block;       // Terms of a column, and terms that share a scale.
  int64_t num_rows;       // Number of rows of scales, or of tables.
  int64_t pitch;          // Distance from the scales of one block to the next, or from one table to the next.
  int64_t table_columns;  // Columns that share a table.
  int64_t entries;        // Entries of a table; the last entry is repeated as padding.
  int64_t vector;         // Numbers of an entry, and columns that share an index: 1, 2 or 4.
  int64_t columns;        // Columns of the product.
  bool four_bits, palette;
  bool halves;  // each number is rounded to fp16, like a constant of an fp16 network
};

// Checks the operands and returns the layout of their packed form, with null addresses; throws Error.
EncodedPanels encoded_panels(const char* kernel, const Tensor& x, const Tensor& weight, const Tensor& numbers,
                             int64_t bits, bool palette, bool transpose_x);
// Returns the bytes of the packed scales or tables.
int64_t number_bytes(const EncodedPanels& panels);
void pack_encoded(const Tensor& weight, const Tensor& numbers, const EncodedPanels& shape, int64_t num_columns,
                  std::byte* panels, std::byte* to_numbers);

// Returns the layout with addresses set. The scales or tables follow the panels.
inline EncodedPanels at_address(EncodedPanels shape, const std::byte* packed, int64_t bytes_of_panels) {
  shape.panels = packed;
  shape.numbers = reinterpret_cast<const float*>(packed + bytes_of_panels);
  return shape;
}

// Returns the rows of the weight that store these columns.
inline Range code_rows(const EncodedPanels& panels, Range columns) {
  return {columns.begin / panels.vector, ceil_div(columns.end, panels.vector)};
}

inline bool halves_hold(const EncodedPanels& tables) { return tables.numbers[tables.num_rows * tables.pitch] != 0; }

// Functions that exist once for each instruction set.
struct EncodedOps {
  // Computes one row of the output. `tile` is set as for a row of GemmOps, except its panels.
  void (*row)(const Tile& tile, const EncodedPanels& panels, Range columns);
  // Decodes the panels of these columns to floats, k * 16 floats for each panel.
  void (*decode)(const EncodedPanels& panels, Range columns, float* to);
  // Multiplies integers by a scale. Codes are signed bytes, or with four_bits numbers 0 to 15, which mean -8 to 7.
  void (*integers)(const uint8_t* codes, int64_t n, bool four_bits, float scale, float* to);
};
const EncodedOps& encoded_ops();

// Returns the number of panels that are decoded at once. At least two panels are decoded: one has too few sums to hide
// the latency of an addition.
inline int64_t decoded_panels(int64_t k) {
  return std::clamp<int64_t>(kInnerPanelBytes / (std::max<int64_t>(k, 1) * kPanelLanes * 4), 2, kTilePanels);
}

// Like multiply() in gemm.h. `decoded`: k * 16 floats for each of decoded_panels() panels. decode(columns) fills it.
template <class Decode, class Locate>
void multiply_decoded(Tile& tile, int64_t k, int64_t num_rows, Range columns, const float* decoded, Decode&& decode,
                      Locate&& locate) {
  const int64_t step = decoded_panels(k) * kPanelLanes;
  tile.panel_bytes = k * kPanelLanes * 4;
  for (int64_t column = columns.begin; column < columns.end; column += step) {
    const Range some = {column, std::min(columns.end, column + step)};
    decode(some);
    multiply(tile, false, reinterpret_cast<const std::byte*>(decoded) - column / kPanelLanes * tile.panel_bytes,
             num_rows, some, locate);
  }
}

template <class Locate>
void multiply_encoded(Tile& tile, const EncodedPanels& panels, int64_t num_rows, Range columns, float* decoded,
                      Locate&& locate) {
  if (num_rows == 1 && tile.num_segments == 1) {
    tile.rows = 1;
    locate(0, 1, tile);
    return encoded_ops().row(tile, panels, columns);
  }
  multiply_decoded(
      tile, panels.k, num_rows, columns, decoded, [&](Range some) { encoded_ops().decode(panels, some, decoded); },
      locate);
}

}  // namespace hexane::cpu
