// Winograd's F(2, 3) along the width: two neighbouring outputs of one kernel row g0 g1 g2 on pixels d0 d1 d2 d3 are
//
//   y0 = (d0 - d2) g0 + (d1 + d2) (g0 + g1 + g2) / 2 + (d2 - d1) (g0 - g1 + g2) / 2
//   y1 = (d1 + d2) (g0 + g1 + g2) / 2 - (d2 - d1) (g0 - g1 + g2) / 2 - (d1 - d3) g2
//
// with every factor rounded to fp16, halves away from zero. By these formulas the even output columns are one
// convolution and the odd columns another, each with three taps and stride 3. The input rows of these two
// convolutions hold the three factors of each output, output by output.
#pragma once

#include <cstdint>

namespace hexane::cpu {

// Computes the factors for `outputs` even and `outputs` odd columns from a row of pixels of `channels` channels.
using FactorsFunction = void (*)(const float* row, int64_t channels, int64_t outputs, float* even, float* odd);
FactorsFunction winograd_factors();

// Computes four factors from each kernel row of three fp16 taps: factors 0 to 2 go to `even`, factors 1 to 3 to `odd`.
using WinogradTapsFunction = void (*)(const uint16_t* rows, int64_t count, uint16_t* even, uint16_t* odd);
WinogradTapsFunction winograd_taps();

}  // namespace hexane::cpu
