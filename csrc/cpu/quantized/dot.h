// The integer multiply-accumulate core shared by quantised matrix multiply and convolution.
//
// Both sides are bytes, the right one signed, the left one as the instruction set wants it; sums are int32 and wrap.
// The right-hand side lies in panels of 16 columns, four k of each column together, zero past the last k of a segment:
//
//                panel 0                               a row of the left-hand side is a list of segments, as in gemm.h
//   k = 0..3   [c0 c0 c0 c0][c1 c1 c1 c1]..[c15 ..]
//   k = 4..7   [c0 c0 c0 c0][c1 c1 c1 c1]..[c15 ..]
//
// Integer sums do not depend on their order, so all instruction sets give the same bits.
#pragma once

#include "cpu/matmul/gemm.h"

namespace hexane::cpu {

inline constexpr int64_t kDotBytes = 4 * kPanelLanes;  // four k of a panel
inline constexpr int64_t kColumnPadding = 64;          // vectors of columns may be read past the last one, as far

// From sums to stored results. Where the epilogue only clamps, an 8-bit integer is
//   round(sum * scale + bias) + zero, saturated,     with scale and bias in steps of the output, scale as two floats.
// Else f = sum * scale + bias in fp32, the epilogue, and then fp32, or round(f * inverse_scale) + zero.
// With q31, an 8-bit integer is rescale(sum, multiplier, shift) of q31.h, moved by zero and clamped; with q31 and
// doubles it is sum * factor, rounded once, halves away from 0.
struct DotOutput {
  DType dtype;  // int32: the sums themselves
  bool q31 = false, doubles = false;
  bool in_steps;   // the first way
  bool in_bounds;  // the epilogue only clamps
  float inverse_scale, zero;
  float low, high;  // bounds of the stored values, clamps included
  ResolvedEpilogue epilogue;
};

// Rows of the output times panels of the right-hand side.
struct DotTile {
  const uint8_t* const* a;  // [num_segments][kTileRows]; of a depthwise tile [window][4 * quads] pixels
  int64_t num_segments;
  int64_t length;
  bool has_slack;  // three bytes past each segment may be read; their values do not matter
  const std::byte* panels;
  int64_t panel_bytes;
  // For each column, padded: the start of the sum, the factor of the row's sum to subtract (or null), the scale and its
  // rest, the bias. They begin at column 0.
  const int32_t* start;
  const int32_t* row_factor;
  const float* scale;
  const float* scale_rest;
  const float* bias;
  const int32_t* multiplier;  // with q31, in the place of scale and scale_rest
  const int32_t* shift;
  const double* factor;  // with doubles, in the place of both
  const DotOutput* output;
  int rows;
  int num_panels;
  int64_t column;
  int64_t num_columns;
  std::byte* out[kMaxTileRows];
  const std::byte* extra[kMaxSlots][kMaxTileRows];
};

// Neighbouring output pixels of one row of a depthwise convolution. Taps of one column of the window go together in
// quads of four. A weight is the sum of its planes, enough of them that each fits in a signed byte. Panels are
// [kernel_w][quads][planes][16][4].
struct DepthwiseDot {
  int64_t quads, kernel_w, stride_w, dilation_w, planes;
  bool flip;  // the sign bits of x
};

// Functions that exist once for each instruction set.
struct DotOps {
  const char* name;
  bool signed_left;
  int depthwise_pixels;          // rows of a depthwise tile, or 1
  void (*tile)(const DotTile&);  // up to kTileRows rows, kTilePanels panels
  void (*depthwise)(const DepthwiseDot&, const DotTile&);
  void (*flip)(const uint8_t* from, int64_t n, uint8_t* to);  // the sign bit of n bytes
};

// The best for this machine. Only tests ask for the best without the dot product instructions that a CPU may have in
// addition to its Highway target: AVX-512-VNNI, AVX-VNNI, NEON's dotprod.
const DotOps& dot_ops(bool extensions = true);

}  // namespace hexane::cpu
