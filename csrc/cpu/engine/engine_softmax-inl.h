// softmax in the engine's steps, each rounded to fp16: subtract the maximum, exponential, multiply by the inverse of
// the sum. The engine's order of addition for a long line is not known; this code sums exactly. Included once per
// Highway target, inside foreach_target.
#if defined(HEXANE_CPU_ENGINE_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEXANE_CPU_ENGINE_SOFTMAX_INL_H_
#undef HEXANE_CPU_ENGINE_SOFTMAX_INL_H_
#else
#define HEXANE_CPU_ENGINE_SOFTMAX_INL_H_
#endif

#include "cpu/engine/activation.h"
#include "cpu/engine/exact_sum-inl.h"
#include "cpu/norm/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {

// Replaces a line by its softmax.
HWY_INLINE void engine_softmax(const SoftmaxMaps& maps, float* line, int64_t n) {
  const V top = set(row_max(line, n));
  map(line, line, n, [&](V x) HWY_ATTR { return hn::Sub(x, top); });
  map_row(*maps.exp, line, n);
  const double sum = exact_sum(line, n, [](V e) HWY_ATTR { return e; });
  const V factor = set(to_float((*maps.inverse)(to_engine_half(sum))));
  map(line, line, n, [&](V e) HWY_ATTR { return rounded(hn::Mul(e, factor)); });
}

}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
