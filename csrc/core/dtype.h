// The dtype table. Sizes are in bits. Python and plan files refer to dtypes by name.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/error.h"

namespace hexane {

enum class DType : uint8_t {
  kBool,
  kInt4,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUint1,
  kUint2,
  kUint3,
  kUint4,
  kUint6,
  kUint8,
  kUint16,
  kUint32,
  kUint64,
  kFp8E4M3,
  kFp8E5M2,
  kFp16,
  kBf16,
  kFp32,
  kFp64,
};

struct DTypeInfo {
  std::string_view name;
  int bits;
};

// The dtypes in the order of the enum, whose numbers never leave this library.
inline constexpr std::array<DTypeInfo, 21> kDTypes = {{
    {"bool", 8},    {"int4", 4},    {"int8", 8},    {"int16", 16}, {"int32", 32}, {"int64", 64},  {"uint1", 1},
    {"uint2", 2},   {"uint3", 3},   {"uint4", 4},   {"uint6", 6},  {"uint8", 8},  {"uint16", 16}, {"uint32", 32},
    {"uint64", 64}, {"fp8e4m3", 8}, {"fp8e5m2", 8}, {"fp16", 16},  {"bf16", 16},  {"fp32", 32},   {"fp64", 64},
}};

inline const DTypeInfo& info(DType dtype) { return kDTypes[static_cast<size_t>(dtype)]; }

inline DType dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < kDTypes.size(); ++i)
    if (kDTypes[i].name == name) return static_cast<DType>(i);
  fail("dtype", "unknown dtype '", name, "'");
}

}  // namespace hexane
