// Highway is found, links, and picks at run time among the instruction sets we build for.
#include <hwy/highway.h>

#include <bit>
#include <cstdint>

#include "check.h"

#if HWY_ARCH_X86
static_assert(HWY_STATIC_TARGET <= HWY_SSE4, "the build's floor: SSE4.2");
#elif HWY_ARCH_ARM_A64
static_assert(HWY_STATIC_TARGET < HWY_EMU128, "the build's floor: NEON");
#endif

int main() {
  CHECK((hwy::SupportedTargets() & HWY_TARGETS) != 0);
  // Each more target would be another copy of all kernels.
  CHECK(std::popcount(static_cast<uint64_t>(HWY_TARGETS)) <= (HWY_ARCH_X86 ? 3 : 1));
  return checks_failed();
}
