// The families of arithmetic a step can compute in. Kernels are looked up by the family; the numbers that make a chip
// what it is come with the plan, in a parameter block that the kernel gets in its call.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace hexane {

struct NumericsFamily {
  std::string_view name;
  std::string_view layout;  // of the parameter block, as a kernel's attributes (see cpu/kernel.h): only "i" and "f"
  uint64_t bytes;           // sizeof the parameter block, 0 if there is none
};

inline constexpr std::array<NumericsFamily, 2> kNumericsFamilies = {{{"ieee", "", 0}, {"engine", "winograd:i", 8}}};

}  // namespace hexane
