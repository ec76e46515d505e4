// Unary ops in the engine's arithmetic. fp16 has only 65536 values, so the result of a unary op for each value is
// computed once.
#pragma once

#include <array>
#include <memory>

#include "core/engine_half.h"
#include "cpu/kernel.h"

namespace hexane::cpu {

struct HalfMap {
  std::array<engine_half, 65536> of;

  engine_half operator()(engine_half x) const { return of[x.bits]; }
};

// Returns the results of an op in the family "engine" for every fp16 input; null if that family lacks the op.
// `numerics` is the family's parameters. Calls with equal arguments share one map while any holder keeps it.
std::shared_ptr<const HalfMap> half_map(std::string_view op, double alpha, double beta, const void* numerics);

// The tables of softmax.
struct SoftmaxMaps {
  std::shared_ptr<const HalfMap> exp, inverse;
};
SoftmaxMaps softmax_maps(const void* numerics);

// Rounds n floats to fp16 and replaces each by its entry in the map, in place.
void map_row(const HalfMap& map, float* x, int64_t n);

}  // namespace hexane::cpu
