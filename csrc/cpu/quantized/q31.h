// Rescales int32 sums to 8 bits in TFLite's way: a multiplier in Q0.31 and a shift. The product is rounded to nearest,
// halves up. A shift to the right is rounded to nearest, halves away from 0. A shift to the left saturates; TFLite
// leaves its overflow undefined.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "cpu/operand.h"

namespace hexane::cpu {

inline constexpr int32_t kLeastShift = -31, kMostShift = 30;
inline constexpr int kDigits = 53;  // digits of a double

inline int32_t saturated(int64_t x) {
  return static_cast<int32_t>(
      std::clamp<int64_t>(x, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()));
}

// Returns sum * multiplier 2^(shift - 31), rounded. multiplier: 0 to 2^31 - 1; shift: kLeastShift to kMostShift.
inline int32_t rescale(int32_t sum, int32_t multiplier, int32_t shift) {
  const int64_t wide = shift > 0 ? saturated(static_cast<int64_t>(sum) << shift) : sum;
  const auto high = static_cast<int32_t>((wide * multiplier + (int64_t{1} << 30)) >> 31);
  if (shift >= 0) return high;
  const int64_t half = int64_t{1} << (-shift - 1);
  return static_cast<int32_t>(high < 0 ? -((half - high) >> -shift) : (half + high) >> -shift);
}

// The last operation on a rescaled sum: add the zero point and clamp.
struct Q31Output {
  int32_t zero, low, high;
  int32_t stored(int32_t x) const {
    return static_cast<int32_t>(std::clamp<int64_t>(static_cast<int64_t>(x) + zero, low, high));
  }
};

inline int32_t check_byte_zero(const char* kernel, const char* what, int64_t zero, DType dtype) {
  const int64_t low = dtype == DType::kInt8 ? -128 : 0;
  if (zero < low || zero > low + 255) fail(kernel, what, ": got ", zero, ", need what ", info(dtype).name, " can hold");
  return static_cast<int32_t>(zero);
}

inline Q31Output q31_output(const char* kernel, DType dtype, int64_t zero, int64_t low, int64_t high) {
  const int64_t lowest = dtype == DType::kInt8 ? -128 : 0;
  const int64_t least = std::max(low, lowest), most = std::min(high, lowest + 255);
  if (least > most) fail(kernel, "low, high: got ", low, " and ", high, ", need a range of the output");
  return {check_byte_zero(kernel, "output_zero", zero, dtype), static_cast<int32_t>(least), static_cast<int32_t>(most)};
}

struct Multiplier {
  int32_t multiplier, shift;
  int32_t operator()(int32_t sum) const { return rescale(sum, multiplier, shift); }
};

inline Multiplier check_multiplier(const char* kernel, const char* what, int64_t multiplier, int64_t shift) {
  if (multiplier < 0 || multiplier > std::numeric_limits<int32_t>::max())
    fail(kernel, what, ": got the multiplier ", multiplier, ", need 0 to 2^31 - 1");
  if (shift < kLeastShift || shift > kMostShift)
    fail(kernel, what, ": got the shift ", shift, ", need ", kLeastShift, " to ", kMostShift);
  return {static_cast<int32_t>(multiplier), static_cast<int32_t>(shift)};
}

}  // namespace hexane::cpu
