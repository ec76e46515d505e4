// The multiply-accumulate core shared by matrix multiply and convolution.
//
// The right-hand side lies in panels of 16 columns, each K-major: panel p holds K rows of 16 lanes, zero past the last
// column. A tile is at most 6 rows of the output (with AMX 32, see bf16.h) by 4 panels. Each element of a tile is one
// chain of fused multiply-adds over k in order, in every tile shape, so dividing the work never changes the bits. A
// long sum is many chains: one for each block of k (sums.h).
//
//            panel 0   panel 1  ...          a row of the left-hand side is a list of segments: a matrix row is one,
//   k = 0   [16 lanes] [16 lanes]            a 3x3 window of an image three (or nine), each `length` floats long
//   k = 1   [16 lanes] [16 lanes]
#pragma once

#include <algorithm>
#include <initializer_list>

#include "core/memory.h"
#include "cpu/engine/activation.h"
#include "cpu/kernel.h"
#include "cpu/operand.h"

namespace hexane::cpu {

inline constexpr int64_t kPanelLanes = 16;
inline constexpr int64_t kTilePanels = 4;
inline constexpr int64_t kTileRows = 6;
inline constexpr int64_t kMaxTileRows = 32;
// Panels of at most this size form the inner loop, once for each tile of rows.
inline constexpr int64_t kInnerPanelBytes = 512 << 10;

// An epilogue with its names resolved. relu6 and clip are clamps to [alpha, beta].
struct ResolvedSlot {
  enum Kind { kAdd, kRelu, kClamp, kFunction, kMap } kind = kAdd;
  float alpha = 0;
  float beta = 0;
  int extra = 0;  // kAdd: index in Tile::extra
  RowFunction function = nullptr;
  std::shared_ptr<const HalfMap> map;  // kMap: the function in the engine's arithmetic
};

struct ResolvedEpilogue {
  int count = 0;
  int num_extra = 0;
  int extra_operand[kMaxSlots] = {};  // Indices in Call::inputs.
  bool in_registers = true;           // True if no slot calls a row function.
  ResolvedSlot slots[kMaxSlots];
};

// Throws Error unless every added operand has the output's shape and dtype and a dense innermost axis. `engine`: use
// the engine's functions where the family has them.
ResolvedEpilogue resolve_epilogue(const char* kernel, const Call& call, const Epilogue& epilogue, bool engine = false);
// Appends a slot that adds this operand; checks the operand as resolve_epilogue() does.
void add_operand(const char* kernel, const Call& call, int64_t operand, ResolvedEpilogue& epilogue);

// Rows of the output times panels of the right-hand side. Pointers to rows point to column 0.
struct Tile {
  const float* const* a;  // [num_segments][kTileRows], or Arithmetic::rows in place of kTileRows
  int64_t num_segments;
  int64_t length;
  const std::byte* panels;  // the first panel of this tile
  int64_t panel_bytes;
  const float* bias;  // biases, [columns rounded up to panels], or null
  const ResolvedEpilogue* epilogue;
  bool half_output;  // Output and extra operands are fp16, otherwise fp32.
  bool bf16_output;  // Output is bf16, extra operands are fp32.
  int rows;
  int num_panels;
  int64_t column;       // First column of the first panel.
  int64_t num_columns;  // Columns of the whole right-hand side.
  // For a sum made block by block (gemm_blocks.h), else null: the totals of the previous blocks, rows `sums_pitch`
  // floats apart. The tile adds its sums to them. Only the tile of the last block writes the output.
  float* sums;
  int64_t sums_pitch;
  bool first_block, last_block;
  std::byte* out[kMaxTileRows];
  const std::byte* extra[kMaxSlots][kMaxTileRows];
};

// Functions that exist once for each instruction set.
struct GemmOps {
  void (*tile_fp32)(const Tile&);  // panels of fp32
  void (*tile_fp16)(const Tile&);
  void (*tile_bf16)(const Tile&);
  void (*to_fp32)(const std::byte* from, DType dtype, int64_t n, float* to);
  // Compute one row of the output from a right-hand side that is not packed, with rows (dot_rows: columns) `stride`
  // bytes apart.
  void (*dot_rows)(const float* x, const std::byte* y, DType dtype, int64_t stride, int64_t k, int64_t n, float* out);
  void (*add_rows)(const float* x, const std::byte* y, DType dtype, int64_t stride, int64_t k, int64_t n, float* out);
  // Applies bias and epilogue to n sums in `row`, which is padded to whole vectors, and stores them from tile.column
  // on.
  void (*finish_row)(const Tile&, float* row, int64_t n);
};
const GemmOps& gemm_ops();

// Multiplies x by some columns of a matrix [k, n], read in place. The matrix's rows or its columns have to be dense.
// Strides are in bytes.
void multiply_row(const float* x, const std::byte* y, DType dtype, int64_t k_stride, int64_t n_stride, int64_t k,
                  int64_t n, Range columns, float* out);

inline constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The arithmetic of a family: how products are added. All families share the kernels around this arithmetic.
struct Arithmetic {
  void (*to_floats)(const std::byte* from, DType dtype, int64_t n, float* to);  // Converts operands for the tile.
  void (*tile)(const Tile&);                                                    // Computes a tile with panels of fp32.
  void (*end_panel)(std::byte* panel,
                    int64_t k) = nullptr;  // fills the end of a panel after its k rows; may be null
  int64_t end_bytes = 0;
  // An item of a row or panel has this many terms: 1, or 2 with bf16 (bf16.h), in 32 bits.
  int64_t terms = 1;
  int64_t segment_items = 1;  // Zeros pad segments in panels to a multiple of this.
  int64_t rows = kTileRows;   // Most rows of a tile.
  bool whole_tiles = false;   // All tiles but the last have `rows` rows; otherwise tiles have about equal rows.
  bool even_rows = false;     // Equidistant rows of a tile are read faster.
  bool reads_bf16 = false;    // Items are pairs of bf16 numbers as in memory, so bf16 operands are read in place.
  // Called before a thread's first tile and after its last tile; may be null.
  void (*begin)() = nullptr;
  void (*end)() = nullptr;

  // Returns the number of items for `count` adjacent terms.
  int64_t items(int64_t count) const { return (count + terms - 1) / terms; }
  // Returns the number of items in a column of a panel.
  int64_t column_items(int64_t num_segments, int64_t length) const {
    return num_segments * (ceil_div(length, segment_items) * segment_items);
  }
};
const Arithmetic& ieee_arithmetic();

// The columns of a matrix in memory. k runs over three axes, the last one fastest: kernel rows, kernel columns and
// channels of a convolution. Strides are in bytes.
struct Columns {
  const std::byte* from;
  DType dtype;  // fp16, bf16 or fp32
  int64_t shape[3], strides[3];
  int64_t num_columns, column_stride;
  bool joined = true;  // a segment of a row is the last two axes together, otherwise the last axis

  int64_t k() const { return shape[0] * shape[1] * shape[2]; }
};

// Packs columns into panels `panel_bytes` apart: either items of the arithmetic and its end of a panel, or with
// `halves` unconverted fp16 or bf16.
void pack_panels(const Columns& columns, bool halves, std::byte* to, int64_t panel_bytes,
                 const Arithmetic& arithmetic = ieee_arithmetic());

// Transposes 16 columns of 16 items each, `stride` bytes apart, to 16 rows of 16 items. Items have 2 or 4 bytes.
using TransposeFunction = void (*)(const std::byte* from, int64_t stride, std::byte* to);
TransposeFunction transpose_block(int64_t item_bytes);

// True if fp16 weights are packed as fp16 and converted in the kernel, which halves the traffic of big weights. Small
// weights that are multiplied with many rows are packed as fp32.
inline bool keep_half(DType dtype, int64_t items, int64_t rows) {
  return dtype == DType::kFp16 && (items * 4 > kInnerPanelBytes / 2 || rows < kTileRows);
}

// Converts the bias of n columns to floats, padded to whole panels.
void pack_bias(const Tensor& bias, int64_t n, float* to, const Arithmetic& arithmetic = ieee_arithmetic());
// Throws Error unless the bias has n elements and its other axes have extent 1.
void check_bias(const char* kernel, const Tensor& bias, int64_t n);

// Divides n into `parts` runs whose lengths differ by at most one. A split into one part skips the slow integer
// division, whose time counts for short work such as one row of an image.
struct Split {
  int64_t length, longer;  // the first `longer` runs have one more
  Split(int64_t n, int64_t parts) : length(parts == 1 ? n : n / parts), longer(parts == 1 ? 0 : n % parts) {}
  int64_t operator[](int64_t run) const { return length + (run < longer); }
};

// Returns the product of sizes from a plan file; throws Error past 2^40.
int64_t checked_product(const char* kernel, std::initializer_list<int64_t> factors);

// Multiplies rows [0, num_rows) by `columns`. `locate(first, count, tile)` sets a, out and extra for rows [first, first
// + count), and `run_tile(tile)` multiplies. The bigger side is streamed once: panels that fit in half of a 1 MiB cache
// form the inner loop.
template <class AnyTile, class RunTile, class Locate>
void multiply_tiles(AnyTile& tile, RunTile&& run_tile, const std::byte* panels, int64_t num_rows, Range columns,
                    Locate&& locate, int64_t tile_rows = kTileRows, bool whole_tiles = false) {
  if (num_rows <= 0 || columns.begin >= columns.end) return;
  const int64_t first_panel = columns.begin / kPanelLanes,
                num_panels = ceil_div(columns.end, kPanelLanes) - first_panel;
  const int64_t wide = tile.panel_bytes * kTilePanels > (768 << 10) ? 2 : kTilePanels;
  const int64_t num_groups = num_panels <= wide ? 1 : ceil_div(num_panels, wide),
                num_tiles = ceil_div(num_rows, tile_rows);
  const Split rows(num_rows, num_tiles), groups(num_panels, num_groups);
  int64_t row, panel;
  const auto row_tile = [&](int64_t i) {
    if (i == 0) row = 0;
    tile.rows = static_cast<int>(whole_tiles ? std::min(tile_rows, num_rows - row) : rows[i]);
    locate(row, tile.rows, tile);
    row += tile.rows;
  };
  const auto column_group = [&](int64_t i) {
    if (i == 0) panel = first_panel;
    tile.num_panels = static_cast<int>(groups[i]);
    tile.column = panel * kPanelLanes;
    tile.panels = panels + panel * tile.panel_bytes;
    panel += tile.num_panels;
  };
  if (num_panels * tile.panel_bytes <= kInnerPanelBytes) {
    for (int64_t r = 0; r < num_tiles; ++r) {
      row_tile(r);
      for (int64_t c = 0; c < num_groups; ++c) {
        column_group(c);
        run_tile(tile);
      }
    }
  } else {
    for (int64_t c = 0; c < num_groups; ++c) {
      column_group(c);
      for (int64_t r = 0; r < num_tiles; ++r) {
        row_tile(r);
        run_tile(tile);
      }
    }
  }
}

template <class Locate>
void multiply(Tile& tile, bool half_panels, const std::byte* panels, int64_t num_rows, Range columns, Locate&& locate,
              const Arithmetic& arithmetic = ieee_arithmetic()) {
  if (arithmetic.begin) arithmetic.begin();
  multiply_tiles(tile, half_panels ? gemm_ops().tile_fp16 : arithmetic.tile, panels, num_rows, columns, locate,
                 arithmetic.rows, arithmetic.whole_tiles);
  if (arithmetic.end) arithmetic.end();
}

}  // namespace hexane::cpu
