// Highway is found, links, and picks at run time among the instruction sets we build for.
#include <hwy/highway.h>

#include "check.h"

static_assert(HWY_STATIC_TARGET <= HWY_SSE4 || HWY_STATIC_TARGET == HWY_NEON, "the build's floor: SSE4.2 or NEON");

int main() {
  CHECK((hwy::SupportedTargets() & HWY_TARGETS) != 0);
  return checks_failed();
}
