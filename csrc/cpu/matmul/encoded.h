// The right-hand side of a matrix product in its stored form: integers with scales, or indices of tables of floats. An
// index may name one number for each of 2 or 4 neighbouring columns. Numbers are decoded in registers where one row of
// x meets them, else a few panels at a time, into memory that caches hold.
//
// Panels have 16 columns, as in gemm.h. For each k they hold a byte of each column, or of each 2 or 4 columns that
// share an index; with four bits a byte holds two k, the lower half first. A decoded number is rounded once, like a
// constant of the decoded weights.
#pragma once

#include "cpu/matmul/gemm.h"

#include <algorithm>

namespace hexane::cpu {

inline constexpr int64_t kTableColumns = 8;  // a table serves a multiple of this many columns
// Entries of a table with indices of four bits, and of the two kinds with eight.
inline constexpr int64_t kTableEntries = 16, kLongTableEntries = 64, kWideTableEntries = 256;

struct EncodedPanels {
  const std::byte* panels;
  // Scales [blocks][columns rounded up to panels], or tables [groups]. A table has its entries in fp32, then in fp16:
  // the lower bytes of all entries, then the upper bytes (wide tables: two bytes for each entry). The float after all
  // tables is not 0 if fp16 holds the entries. Tables of vectors have fp32 alone, the numbers of an entry in a row.
  const float* numbers;
  int64_t panel_bytes;
  int64_t k, block;       // terms of a column, and of one scale
  int64_t num_rows;       // of scales or tables
  int64_t pitch;          // from the scales of one block to the next, or from one table to the next
  int64_t table_columns;  // of one table
  int64_t entries;        // of one table; the last may repeat as padding
  int64_t vector;         // numbers of an entry, and columns that share a row of indices: 1, 2 or 4
  int64_t columns;        // of the product
  bool four_bits, palette;
  bool halves;  // each number is rounded to fp16, as a constant of an fp16 network is
};

// Checks the operands, and says how they are packed; throws Error. Without addresses.
EncodedPanels encoded_panels(const char* kernel, const Tensor& x, const Tensor& weight, const Tensor& numbers,
                             int64_t bits, bool palette, bool transpose_x);
// Bytes of scales or tables as they are packed.
int64_t number_bytes(const EncodedPanels& panels);
void pack_encoded(const Tensor& weight, const Tensor& numbers, const EncodedPanels& shape, int64_t num_columns,
                  std::byte* panels, std::byte* to_numbers);

// With its addresses: numbers follow the panels.
inline EncodedPanels at_address(EncodedPanels shape, const std::byte* packed, int64_t bytes_of_panels) {
  shape.panels = packed;
  shape.numbers = reinterpret_cast<const float*>(packed + bytes_of_panels);
  return shape;
}

// The rows of the weight that these columns are decoded from.
inline Range code_rows(const EncodedPanels& panels, Range columns) {
  return {columns.begin / panels.vector, ceil_div(columns.end, panels.vector)};
}

inline bool halves_hold(const EncodedPanels& tables) { return tables.numbers[tables.num_rows * tables.pitch] != 0; }

// Functions that exist once for each instruction set.
struct EncodedOps {
  // One row of the output; `tile` as for a row of GemmOps, but for its panels.
  void (*row)(const Tile& tile, const EncodedPanels& panels, Range columns);
  // The panels of these columns as floats, k * 16 floats each.
  void (*decode)(const EncodedPanels& panels, Range columns, float* to);
  // Integers times a scale: of 8 bits with their sign, or from 0 to 15 for -8 to 7.
  void (*integers)(const uint8_t* codes, int64_t n, bool four_bits, float scale, float* to);
};
const EncodedOps& encoded_ops();

// How many panels are decoded at once. At least two: the few sums of one panel wait for each other.
inline int64_t decoded_panels(int64_t k) {
  return std::clamp<int64_t>(kInnerPanelBytes / (std::max<int64_t>(k, 1) * kPanelLanes * 4), 2, kTilePanels);
}

// Like multiply() in gemm.h. decoded: k * 16 floats for each of decoded_panels(), which decode(columns) fills.
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
