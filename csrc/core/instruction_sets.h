// Families of instruction sets. Code under foreach_target.h tests for a family, not for one target of Highway. Newer
// Highways add targets to a family (AVX3_DL, AVX3_ZEN4 and AVX3_SPR to AVX-512), and each new target has all
// instructions of its family.
#pragma once

#include <hwy/detect_targets.h>

// Highway numbers x86's targets downwards: a newer target has a smaller number.
#define HEXANE_HAS_AVX512 (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3)
#define HEXANE_HAS_AVX2 (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2)
#define HEXANE_HAS_NEON (HWY_ARCH_ARM_A64 && HWY_TARGET < HWY_EMU128)
