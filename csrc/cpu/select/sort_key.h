// Values as unsigned keys in the order of sorting: NaN above everything and equal to itself, -0 equal to 0.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "core/dtype.h"
#include "core/fp16.h"

namespace hexane::cpu {

inline uint64_t sort_key(double value) {
  if (value != value) return ~uint64_t{0};
  const uint64_t bits = std::bit_cast<uint64_t>(value + 0.0);  // -0 becomes 0
  return bits >> 63 ? ~bits : bits | 0x8000000000000000u;
}

inline uint64_t sort_key(float value) {
  if (value != value) return ~uint64_t{0};
  const uint32_t bits = std::bit_cast<uint32_t>(value + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

inline uint64_t sort_key(int64_t value) { return static_cast<uint64_t>(value) ^ 0x8000000000000000u; }
inline uint64_t sort_key(uint64_t value) { return value; }
inline uint64_t sort_key(int32_t value) { return sort_key(int64_t{value}); }
inline uint64_t sort_key(fp16 value) { return sort_key(to_float(value)); }

// The key of an element of a dtype of whole bytes; fp8 is ordered by its bits.
inline uint64_t sort_key(DType dtype, const std::byte* from) {
  const auto read = [&](auto value) {
    std::memcpy(&value, from, sizeof(value));
    return value;
  };
  switch (dtype) {
    case DType::kFp64:
      return sort_key(read(double{}));
    case DType::kFp32:
      return sort_key(read(float{}));
    case DType::kFp16:
      return sort_key(read(fp16{}));
    case DType::kBf16:
      return sort_key(std::bit_cast<float>(static_cast<uint32_t>(read(uint16_t{})) << 16));
    case DType::kInt8:
      return sort_key(int64_t{read(int8_t{})});
    case DType::kInt16:
      return sort_key(int64_t{read(int16_t{})});
    case DType::kInt32:
      return sort_key(read(int32_t{}));
    case DType::kInt64:
      return sort_key(read(int64_t{}));
    case DType::kUint16:
      return read(uint16_t{});
    case DType::kUint32:
      return read(uint32_t{});
    case DType::kUint64:
      return read(uint64_t{});
    default:
      return read(uint8_t{});
  }
}

}  // namespace hexane::cpu
