// IEEE half precision: one value at a time, and whole arrays at the speed of memory. Rounds to nearest even; NaN stays
// NaN.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace hexane {

struct fp16 {
  uint16_t bits;
};

constexpr float to_float(fp16 half) {
  const uint32_t sign = (half.bits & 0x8000u) << 16, magnitude = half.bits & 0x7fffu;
  if (magnitude > 0x7c00) return std::bit_cast<float>(sign | 0x7fc00000u | magnitude << 13);
  if (magnitude == 0x7c00) return std::bit_cast<float>(sign | 0x7f800000u);
  // After the shift the exponent is 112 too small; the multiplication corrects the exponent, also for subnormals.
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112f));
}

constexpr fp16 to_fp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520: half way between the largest value and infinity
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // adding 0.5 leaves a subnormal result, rounded, in the low bits
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
  }
  return {static_cast<uint16_t>(sign | half)};
}

// The spans `from` and `to` have the same length. The first function returns whether all results are finite.
bool convert(std::span<const float> from, std::span<fp16> to);
void convert(std::span<const fp16> from, std::span<float> to);

}  // namespace hexane
