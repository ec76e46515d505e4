// The arithmetic of the engine's multiply-accumulate path, for the tiles of matmul/gemm.h.
#pragma once

#include "cpu/matmul/gemm.h"

namespace hexane::cpu {

const Arithmetic& engine_arithmetic();

}  // namespace hexane::cpu
