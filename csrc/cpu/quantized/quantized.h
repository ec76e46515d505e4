// Shared by quantised products: the operands x, y, scale, bias, x_zero, y_zero, and what each output column needs of
// them.
//
// With a = x and b = y as the dot product wants their signs, and their zero points moved as well, a sum is
//   sum (a - x_zero) (b - y_zero) = sum a b  -  x_zero sum b + K x_zero y_zero  -  y_zero sum a
//                                            [ the column's start             ] [ row_factor * row's sum ]
#pragma once

#include "cpu/quantized/dot.h"

namespace hexane::cpu {

inline constexpr int kNumQuantizedInputs = 6;  // without the epilogue's operands
inline constexpr int kNumQ31Inputs = 7;
inline constexpr int64_t kSlack = 8;  // bytes after copied rows, for DotTile::has_slack

struct QuantizedAttrs {
  double output_scale;
  int64_t output_zero;
  Epilogue epilogue;
};

// With q31: the scale is an int32 multiplier, and its int8 shift follows the other operands. An int64 multiplier has
// the digits of a double: factor = multiplier 2^(shift - 53).
struct Q31Attrs {
  int64_t output_zero, low, high;
};

// The facts of a call that are known when it is prepared.
struct QuantizedState {
  const DotOps* ops;
  int64_t num_columns, width;  // the columns come in groups of `width`, each padded to whole panels
  int64_t padded_columns;
  bool flip_x, flip_y;  // the sign bits change on the way to the dot product
  bool has_row_factor;
  bool constant_columns;  // nothing that a column needs depends on the call
  double output_scale;
  DotOutput output;
};

// Checks x, y, the output's dtype and the attributes; throws Error.
void set_quantized(const char* kernel, QuantizedState& s, const Call& call, const QuantizedAttrs& attrs);
void set_quantized(const char* kernel, QuantizedState& s, const Call& call, const Q31Attrs& attrs);

// Also scale, bias and zero points, which have one element or one for each of the columns.
void set_columns(const char* kernel, QuantizedState& s, const Call& call, int64_t num_columns, int64_t width);

// The zero point of x as the dot product sees it: as a number, and as the byte that means a real 0.
int32_t left_zero(const QuantizedState& s, const Call& call);
inline uint8_t left_zero_byte(const QuantizedState& s, const Call& call) {
  return static_cast<uint8_t>(left_zero(s, call));
}

// The zero point of y for one column, as y meets the dot product.
int32_t right_zero(const QuantizedState& s, const Call& call, int64_t column);

// start for `num_starts` sets of columns, then row_factor, scale, its rest (with q31: multiplier and
// shift; with doubles the factor in the place of both) and bias for one, each padded.
inline int64_t column_bytes(const QuantizedState& s, int64_t num_starts) {
  return 4 * s.padded_columns * (num_starts + 4);
}

// `sums`: sums of the right-hand side, [num_starts][padded_columns]; k: the number of terms of a sum.
void fill_columns(const QuantizedState& s, const Call& call, const int32_t* sums, int64_t num_starts, int64_t k,
                  std::byte* to);

// Points the tile to columns from `first` on, in set `set`.
void point_to_columns(const QuantizedState& s, const std::byte* columns, int64_t num_starts, int64_t set, int64_t first,
                      DotTile& tile);

// Writes the byte k of a column of a panel.
inline std::byte& panel_byte(std::byte* panel, int64_t k, int64_t lane) {
  return panel[k / 4 * kDotBytes + lane * 4 + k % 4];
}

}  // namespace hexane::cpu
