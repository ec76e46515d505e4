// The multiply-accumulate core shared by matrix multiply and convolution.
//
// The right-hand side lies in panels of 16 columns, each K-major: panel p holds K rows of 16 lanes, zero past the last
// column. A tile is at most 6 rows of the output by 4 panels. Each of its elements is one chain of fused multiply-adds
// over k in order, in every tile shape, so the cutting of work never shows in the bits. Long sums are many such chains:
// one for each block of k (sums.h).
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
inline constexpr int64_t kInnerPanelBytes = 512 << 10;  // of panels that are swept for each tile of rows

// An epilogue with its names resolved. relu6 and clip are clamps to [alpha, beta].
struct ResolvedSlot {
  enum Kind { kAdd, kRelu, kClamp, kFunction, kMap } kind = kAdd;
  float alpha = 0;
  float beta = 0;
  int extra = 0;  // kAdd: which row of Tile::extra
  RowFunction function = nullptr;
  std::shared_ptr<const HalfMap> map;  // the function in the engine's arithmetic
};

struct ResolvedEpilogue {
  int count = 0;
  int num_extra = 0;
  int extra_operand[kMaxSlots] = {};  // in Call::inputs
  bool in_registers = true;           // no slot is a function of a row
  ResolvedSlot slots[kMaxSlots];
};

// Throws Error unless every added operand has the output's shape and dtype and a dense innermost axis. With `engine`,
// functions of the engine's family are used as far as it has them.
ResolvedEpilogue resolve_epilogue(const char* kernel, const Call& call, const Epilogue& epilogue, bool engine = false);
// One more slot, which adds that operand; throws the same.
void add_operand(const char* kernel, const Call& call, int64_t operand, ResolvedEpilogue& epilogue);

// Rows of the output times panels of the right-hand side. Pointers to rows are to column 0.
struct Tile {
  const float* const* a;  // [num_segments][kTileRows], or the arithmetic's rows
  int64_t num_segments;
  int64_t length;
  const std::byte* panels;  // the first panel of this tile
  int64_t panel_bytes;
  const float* bias;  // [columns rounded up to panels], or null
  const ResolvedEpilogue* epilogue;
  bool half_output;  // fp16 output and extra operands, else fp32
  bool bf16_output;  // with extra operands in fp32
  int rows;
  int num_panels;
  int64_t column;       // of the first panel
  int64_t num_columns;  // of the whole right-hand side
  // For a sum made block by block (gemm_blocks.h), else null: the total of the previous blocks, in `sums_pitch` floats
  // for each row; this tile's sum is added to it. Only the last block ends in the output.
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
  void (*to_fp32)(const std::byte* from, DType dtype, int64_t n, float* to);
  // One row of the output when the right-hand side is not worth packing: straight from its rows of `stride` bytes.
  void (*dot_rows)(const float* x, const std::byte* y, DType dtype, int64_t stride, int64_t k, int64_t n, float* out);
  void (*add_rows)(const float* x, const std::byte* y, DType dtype, int64_t stride, int64_t k, int64_t n, float* out);
  // Bias, epilogue and store of n columns from tile.column, computed in `row`, which is padded to whole vectors.
  void (*finish_row)(const Tile&, float* row, int64_t n);
};
const GemmOps& gemm_ops();

// x times some columns of a matrix [k, n] read where it lies, whose rows or columns are dense. Strides are in bytes.
void multiply_row(const float* x, const std::byte* y, DType dtype, int64_t k_stride, int64_t n_stride, int64_t k,
                  int64_t n, Range columns, float* out);

inline constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The addition of products, which differs between families of arithmetic. The kernels around it are the same.
struct Arithmetic {
  void (*to_floats)(const std::byte* from, DType dtype, int64_t n, float* to);  // operands, as the tile reads them
  void (*tile)(const Tile&);                                                    // panels of fp32
  void (*end_panel)(std::byte* panel,
                    int64_t k) = nullptr;  // fills the end of a panel after its k rows; null: nothing
  int64_t end_bytes = 0;
  // With bf16 (bf16.h), two terms of k are one item of 32 bits.
  int64_t terms = 1;
  int64_t segment_items = 1;  // segments in panels are padded with zeros to a multiple
  int64_t rows = kTileRows;   // of a tile at most
  bool whole_tiles = false;   // all tiles but the last have as many, else about the same
  bool even_rows = false;     // rows of a tile that are equally far apart are read faster
  bool reads_bf16 = false;    // its items are numbers of bf16 as they lie in memory
  // Around the tiles of one thread; null: nothing.
  void (*begin)() = nullptr;
  void (*end)() = nullptr;

  // How many items so many terms that follow each other are.
  int64_t items(int64_t count) const { return (count + terms - 1) / terms; }
  // The items of a panel's column.
  int64_t column_items(int64_t num_segments, int64_t length) const {
    return num_segments * (ceil_div(length, segment_items) * segment_items);
  }
};
const Arithmetic& ieee_arithmetic();

// The columns of a matrix as they lie in memory. k runs over three axes, the last one fastest: kernel rows, kernel
// columns and channels of a convolution. Strides are in bytes.
struct Columns {
  const std::byte* from;
  DType dtype;  // fp16, bf16 or fp32
  int64_t shape[3], strides[3];
  int64_t num_columns, column_stride;
  bool joined = true;  // the last two axes are one segment of a row, else the last one is

  int64_t k() const { return shape[0] * shape[1] * shape[2]; }
};

// Packs columns into panels that are `panel_bytes` apart: floats of the arithmetic followed by its end of a panel, or
// halves as they are.
void pack_panels(const Columns& columns, bool halves, std::byte* to, int64_t panel_bytes,
                 const Arithmetic& arithmetic = ieee_arithmetic());

// 16 columns of 16 items each, `stride` bytes apart, to 16 rows of 16 items. Items of 2 or 4 bytes.
using TransposeFunction = void (*)(const std::byte* from, int64_t stride, std::byte* to);
TransposeFunction transpose_block(int64_t item_bytes);

// Small fp16 weights that meet many rows are kept as fp32; big ones are converted in the kernel, which halves traffic.
inline bool keep_half(DType dtype, int64_t items, int64_t rows) {
  return dtype == DType::kFp16 && (items * 4 > kInnerPanelBytes / 2 || rows < kTileRows);
}

// The bias of n columns as floats, padded to whole panels.
void pack_bias(const Tensor& bias, int64_t n, float* to, const Arithmetic& arithmetic = ieee_arithmetic());
// Throws Error unless the bias has n elements, all along its last axis.
void check_bias(const char* kernel, const Tensor& bias, int64_t n);

// n things in `parts` runs whose lengths differ by at most one. Few things, as of one row of an image, are not divided.
struct Split {
  int64_t length, longer;  // the first `longer` runs have one more
  Split(int64_t n, int64_t parts) : length(parts == 1 ? n : n / parts), longer(parts == 1 ? 0 : n % parts) {}
  int64_t operator[](int64_t run) const { return length + (run < longer); }
};

// Product of sizes that come from a file; throws Error past 2^40.
int64_t checked_product(const char* kernel, std::initializer_list<int64_t> factors);

// Rows [0, num_rows) times columns [begin, end). `locate(first, count, tile)` fills a, out and extra for rows
// [first, first + count), and `run_tile(tile)` multiplies. The bigger side is streamed once: panels that fit in half of
// a 1 MiB cache are the inner loop.
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
