// The integer multiply-accumulate core shared by quantised matrix multiply and convolution.
//
// Both sides of a product are bytes. The right side is signed; the instruction set decides whether the left side is.
// Sums are int32 and wrap. The right-hand side lies in panels of 16 columns, four k of each column together, zero past
// the last k of a segment:
//
//                panel 0                               a row of the left-hand side is a list of segments, as in gemm.h
//   k = 0..3   [c0 c0 c0 c0][c1 c1 c1 c1]..[c15 ..]
//   k = 4..7   [c0 c0 c0 c0][c1 c1 c1 c1]..[c15 ..]
//
// Integer sums do not depend on their order, so all instruction sets give the same bits.
#pragma once

#include "cpu/matmul/gemm.h"

namespace hexane::cpu {

inline constexpr int64_t kDotBytes = 4 * kPanelLanes;  // Bytes of a panel for four values of k.
inline constexpr int64_t kColumnPadding = 64;          // Columns of padding, since whole vectors are read.

// How sums become stored results. If the epilogue only clamps, an 8-bit integer is
//   round(sum * scale + bias) + zero, saturated,     with scale and bias in steps of the output, scale as two floats.
// With another epilogue or an fp32 result, f = sum * scale + bias in fp32, then the epilogue. An fp32 result is f, an
// 8-bit result round(f * inverse_scale) + zero. With q31, an 8-bit integer is rescale(sum, multiplier, shift) of q31.h,
// plus zero, clamped. With q31 and doubles, an 8-bit integer is sum * factor, rounded once, halves away from 0, plus
// zero, clamped.
struct DotOutput {
  DType dtype;  // dtype of the output; int32: sums are stored unchanged
  bool q31 = false, doubles = false;
  bool in_steps;   // Results have 8 bits and use the first formula.
  bool in_bounds;  // The epilogue only clamps.
  float inverse_scale, zero;
  float low, high;  // bounds of the stored values, from the dtype and the clamps
  ResolvedEpilogue epilogue;
};

// Rows of the output times panels of the right-hand side.
struct DotTile {
  const uint8_t* const* a;  // [num_segments][kTileRows]; for a depthwise tile [window][4 * quads] pixels
  int64_t num_segments;
  int64_t length;
  bool has_slack;  // three bytes after each segment are readable, with any values
  const std::byte* panels;
  int64_t panel_bytes;
  // Arrays with one value for each column from column 0 on, padded: the initial sum, the factor of the row's sum to
  // subtract (or null), the scale and its low part, the bias.
  const int32_t* start;
  const int32_t* row_factor;
  const float* scale;
  const float* scale_rest;
  const float* bias;
  const int32_t* multiplier;  // q31 uses multiplier and shift in place of scale and scale_rest
  const int32_t* shift;
  const double* factor;  // arithmetic in doubles uses factor in place of multiplier and shift
  const DotOutput* output;
  int rows;
  int num_panels;
  int64_t column;
  int64_t num_columns;
  std::byte* out[kMaxTileRows];
  const std::byte* extra[kMaxSlots][kMaxTileRows];
};

// Neighbouring output pixels of one row of a depthwise convolution. Four taps of one column of the window form a quad.
// A weight is a sum of `planes` signed bytes. Panels are [kernel_w][quads][planes][16][4].
struct DepthwiseDot {
  int64_t quads, kernel_w, stride_w, dilation_w, planes;
  bool flip;  // whether to flip the sign bits of x
};

// Functions that exist once for each instruction set.
struct DotOps {
  const char* name;
  bool signed_left;
  int depthwise_pixels;          // Output pixels of a depthwise tile.
  void (*tile)(const DotTile&);  // Computes at most kTileRows rows and kTilePanels panels.
  void (*depthwise)(const DepthwiseDot&, const DotTile&);
  void (*flip)(const uint8_t* from, int64_t n, uint8_t* to);  // flips the sign bit of n bytes
};

// Returns the fastest ops for this machine. With extensions = false, which only tests use, it ignores dot product
// instructions that a CPU may have in addition to its Highway target: AVX-512-VNNI, AVX-VNNI, NEON's dotprod.
const DotOps& dot_ops(bool extensions = true);

}  // namespace hexane::cpu
