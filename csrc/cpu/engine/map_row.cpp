// Applies an activation map after a product: rounds values to fp16, then looks them up.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/engine/map_row.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/simd/vector-inl.h"

#include <algorithm>

#include "cpu/elementwise/elementwise.h"
#include "cpu/engine/activation.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

void map_row(const HalfMap& map, float* x, int64_t n) {
  alignas(64) engine_half halves[kChunk];
  const auto as_it_is = [](V v) HWY_ATTR { return v; };
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = std::min(kChunk, n - i);
    HWY_NAMESPACE::map(x + i, halves, count, as_it_is);
    for (int64_t j = 0; j < count; ++j) halves[j] = map(halves[j]);
    HWY_NAMESPACE::map(halves, x + i, count, as_it_is);
  }
}

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(map_row);
void map_row(const HalfMap& map, float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(map_row)(map, x, n); }
}  // namespace hexane::cpu
#endif
