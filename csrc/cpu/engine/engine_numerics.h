// The parameter block of the family "engine": the constants of one chip's arithmetic. core/numerics.h has its layout.
#pragma once

#include <cstdint>

#include "core/numerics.h"

namespace hexane::cpu {

inline constexpr int kMaxKnots = 33;

// A piecewise linear function with equidistant knots. shared/activations.toml, the source of the tables, explains each
// field.
struct ActivationTable {
  enum Reduction : int { kNone, kOdd, kExp2, kLog2, kSqrt, kRsqrt, kInverse, kQuarters };
  double reduction;
  double domain[2];
  double segments;
  double clamp[2];
  double left[2], right[2];  // slope and offset of the line outside the domain
  double at_zero, at_infinity;
  double knots[kMaxKnots];
};

struct EngineNumerics {
  int64_t winograd;  // whether 3x3 convolutions of stride 1 use Winograd's F(2, 3) along the width
  ActivationTable sigmoid, tanh, erf, exp2, log2, sqrt, rsqrt, inverse, gelu, silu, sin;
};

static_assert(sizeof(EngineNumerics) == kNumericsFamilies[1].bytes);

}  // namespace hexane::cpu
