// The kernel tables, one per family, each for the best instruction set of this machine.
#pragma once

#include "cpu/kernel.h"

namespace hexane::cpu {

std::span<const Kernel> conv_table();
std::span<const Kernel> conv_transpose_table();
std::span<const Kernel> copy_table();
std::span<const Kernel> matmul_table();

}  // namespace hexane::cpu
