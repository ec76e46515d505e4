// The arithmetic of the engine's multiply-accumulate path, for the tiles of matmul/gemm.h.
#pragma once

#include "cpu/engine/engine_numerics.h"
#include "cpu/spatial/conv.h"

namespace hexane::cpu {

const Arithmetic& engine_arithmetic();

DepthwiseFunction engine_depthwise();

}  // namespace hexane::cpu
