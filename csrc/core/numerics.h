// The families of a step's arithmetic. Kernels are looked up by family. The plan stores the chip's parameters in a
// block that each call of a kernel gets.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace hexane {

struct NumericsFamily {
  std::string_view name;
  std::string_view layout;  // Fields of the block, like a kernel's attributes (cpu/kernel.h): only "i" and "f".
  uint64_t bytes;           // Size of the parameter block, 0 if there is none.
};

// Each activation table is 45 numbers (cpu/engine/engine_numerics.h).
inline constexpr std::array<NumericsFamily, 2> kNumericsFamilies = {{
    {"ieee", "", 0},
    {"engine",
     "winograd:i sigmoid:45f tanh:45f erf:45f exp2:45f log2:45f sqrt:45f rsqrt:45f inverse:45f gelu:45f silu:45f "
     "sin:45f",
     8 + 11 * 45 * 8},
}};

}  // namespace hexane
