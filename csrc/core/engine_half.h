// fp16 as the engine's planar path reads and writes it: a NaN is read as infinity. Results are rounded to nearest,
// halves away from zero, and NaN becomes 0.
#pragma once

#include <bit>
#include <limits>

#include "core/fp16.h"

namespace hexane {

struct engine_half {
  uint16_t bits;
};

constexpr float to_float(engine_half half) {
  if ((half.bits & 0x7fff) > 0x7c00) return std::numeric_limits<float>::infinity();
  return to_float(fp16{half.bits});
}

constexpr engine_half to_engine_half(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x), size = bits & ~uint64_t{0} >> 1;
  const auto sign = static_cast<uint16_t>(bits >> 48 & 0x8000u);
  constexpr uint64_t kInfinity = uint64_t{0x7ff} << 52;
  if (size > kInfinity) return {0};
  if (size >= std::bit_cast<uint64_t>(65520.0)) return {static_cast<uint16_t>(sign | 0x7c00u)};
  if (size < std::bit_cast<uint64_t>(0x1p-14)) {
    const double units = std::bit_cast<double>(size) * 0x1p24;  // multiples of the least subnormal
    const auto whole = static_cast<uint16_t>(units);
    return {static_cast<uint16_t>(sign | (whole + (units - whole >= 0.5)))};
  }
  const uint64_t rounded = (size + (uint64_t{1} << 41)) >> 42;  // a carry increments the exponent
  return {static_cast<uint16_t>(sign | (rounded - ((1023 - 15) << 10)))};
}

// Rounds a constant of a program to fp16, to nearest even.
constexpr float as_fp16(double x) { return to_float(to_fp16(static_cast<float>(x))); }

}  // namespace hexane
