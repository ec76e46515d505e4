// bfloat16, the upper half of an fp32, one value at a time. Rounds to nearest even; NaN stays NaN.
#pragma once

#include <bit>
#include <cstdint>

namespace hexane {

struct bf16 {
  uint16_t bits;
};

constexpr float to_float(bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

constexpr bf16 to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (x != x) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

}  // namespace hexane
