// Winograd's F(2, 3) along the width: two neighbouring outputs of one kernel row g0 g1 g2 on pixels d0 d1 d2 d3 are
//
//   y0 = (d0 - d2) g0 + (d1 + d2) (g0 + g1 + g2) / 2 + (d2 - d1) (g0 - g1 + g2) / 2
//   y1 = (d1 + d2) (g0 + g1 + g2) / 2 - (d2 - d1) (g0 - g1 + g2) / 2 - (d1 - d3) g2
//
// with every factor rounded to fp16, halves away from zero. So the outputs of even and of odd columns are two
// convolutions with three taps and stride 3. Their input rows hold the three factors of each output, one output after
// the other.
#pragma once

#include <cstdint>

namespace hexane::cpu {

// A row of pixels of so many channels, to the factors for the even and the odd of `outputs` columns.
using FactorsFunction = void (*)(const float* row, int64_t channels, int64_t outputs, float* even, float* odd);
FactorsFunction winograd_factors();

// From each kernel row of three taps, in fp16, four factors: factors 0 to 2 go to `even`, factors 1 to 3 to `odd`.
using WinogradTapsFunction = void (*)(const uint16_t* rows, int64_t count, uint16_t* even, uint16_t* odd);
WinogradTapsFunction winograd_taps();

}  // namespace hexane::cpu
