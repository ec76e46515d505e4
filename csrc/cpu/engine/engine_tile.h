// The arithmetic of the engine's multiply-accumulate path, for the tiles of matmul/gemm.h.
#pragma once

#include "cpu/spatial/conv.h"

namespace hexane::cpu {

const Arithmetic& engine_arithmetic();

// The parameter block of the family "engine".
struct EngineNumerics {
  int64_t winograd;  // convolutions of 3x3 and stride 1 take Winograd's F(2, 3) along the width
};

// Winograd's F(2, 3) along the width: two neighbouring outputs of one kernel row g0 g1 g2 on pixels d0 d1 d2 d3 are
//
//   y0 = (d0 - d2) g0 + (d1 + d2) (g0 + g1 + g2) / 2 + (d2 - d1) (g0 - g1 + g2) / 2
//   y1 = (d1 + d2) (g0 + g1 + g2) / 2 - (d2 - d1) (g0 - g1 + g2) / 2 - (d1 - d3) g2
//
// with every factor rounded to fp16, halves away from zero. So the outputs of even and of odd columns are two
// convolutions with three taps and stride 3, of rows that hold the three factors of each output one after the other.
//
// What exists once per instruction set.
struct EngineOps {
  // A row of pixels of so many channels, to the factors for the even and the odd of `outputs` columns.
  void (*factors)(const float* row, int64_t channels, int64_t outputs, float* even, float* odd);
  DepthwiseFunction depthwise;  // one input and one output channel in each group
};
const EngineOps& engine_ops();

// The four factors of a kernel row, as fp16.
void winograd_weights(const float taps[3], uint16_t factors[4]);

}  // namespace hexane::cpu
