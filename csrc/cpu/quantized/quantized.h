// Shared by quantised products: the operands x, y, scale, bias, x_zero, y_zero, and constants of each output column.
//
// Let a and b be x and y with signs as the dot product requires, and let the zero points be shifted by the same amount.
// A sum is
//   sum (a - x_zero) (b - y_zero) = sum a b  -  x_zero sum b + K x_zero y_zero  -  y_zero sum a
//                                            [ the column's start             ] [ row_factor * row's sum ]
#pragma once

#include "cpu/quantized/dot.h"

namespace hexane::cpu {

inline constexpr int kNumQuantizedInputs = 6;  // inputs before the epilogue's operands
inline constexpr int kNumQ31Inputs = 7;
inline constexpr int64_t kSlack = 8;  // bytes after copied rows, for DotTile::has_slack

struct QuantizedAttrs {
  double output_scale;
  int64_t output_zero;
  Epilogue epilogue;
};

// With q31 the scale is an int32 multiplier, and its int8 shift is the operand after all others. An int64 multiplier
// stands for a double: factor = multiplier 2^(shift - 53).
struct Q31Attrs {
  int64_t output_zero, low, high;
};

// The values of a call that prepare() computes.
struct QuantizedState {
  const DotOps* ops;
  int64_t num_columns, width;  // columns form groups of `width`; each group is padded to whole panels
  int64_t padded_columns;
  bool flip_x, flip_y;  // whether to flip the operand's sign bits before the dot product
  bool has_row_factor;
  bool constant_columns;  // the constants of columns do not depend on the call
  double output_scale;
  DotOutput output;
};

// Checks x, y, the output's dtype and the attributes; throws Error.
void set_quantized(const char* kernel, QuantizedState& s, const Call& call, const QuantizedAttrs& attrs);
void set_quantized(const char* kernel, QuantizedState& s, const Call& call, const Q31Attrs& attrs);

// Checks scale, bias and zero points, which have one element or one per column, and sets the fields that depend on
// them; throws Error.
void set_columns(const char* kernel, QuantizedState& s, const Call& call, int64_t num_columns, int64_t width);

// Returns the zero point of x with the sign of the dot product. A byte with this value means a real 0.
int32_t left_zero(const QuantizedState& s, const Call& call);
inline uint8_t left_zero_byte(const QuantizedState& s, const Call& call) {
  return static_cast<uint8_t>(left_zero(s, call));
}

// Returns the zero point of y for one column, shifted like y for the dot product.
int32_t right_zero(const QuantizedState& s, const Call& call, int64_t column);

// Returns the bytes of the column constants: `num_starts` arrays of start, then row_factor, scale, its low part and
// bias. With q31, multiplier and shift replace the scale and its low part; with doubles the factor replaces both. Each
// array of column constants is padded.
inline int64_t column_bytes(const QuantizedState& s, int64_t num_starts) {
  return 4 * s.padded_columns * (num_starts + 4);
}

// Computes the column constants. `sums`: column sums of the right-hand side, [num_starts][padded_columns]; k: the
// number of terms of a sum.
void fill_columns(const QuantizedState& s, const Call& call, const int32_t* sums, int64_t num_starts, int64_t k,
                  std::byte* to);

// Points the tile to the constants of columns from `first` on, with the start array number `set`.
void point_to_columns(const QuantizedState& s, const std::byte* columns, int64_t num_starts, int64_t set, int64_t first,
                      DotTile& tile);

// Returns byte k of the column `lane` in a panel.
inline std::byte& panel_byte(std::byte* panel, int64_t k, int64_t lane) {
  return panel[k / 4 * kDotBytes + lane * 4 + k % 4];
}

}  // namespace hexane::cpu
