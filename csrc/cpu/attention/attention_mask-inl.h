// Applies the mask of an attention to a row of scores. Included once per Highway target, inside foreach_target.
#if defined(HEXANE_CPU_ATTENTION_MASK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEXANE_CPU_ATTENTION_MASK_INL_H_
#undef HEXANE_CPU_ATTENTION_MASK_INL_H_
#else
#define HEXANE_CPU_ATTENTION_MASK_INL_H_
#endif

#include <algorithm>

#include "cpu/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

template <class T>
void add_mask(const std::byte* from, int64_t stride, int64_t n, float* scores) {
  constexpr int64_t kBlock = 64;
  alignas(64) float part[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t count = std::min(kBlock, n - i);
    gather<T>(from + i * stride, stride, part, count);
    map(scores + i, part, scores + i, count, [](V x, V m) HWY_ATTR { return hn::Add(x, m); });
  }
}

// Replaces the scores by `other` where the mask is false.
void keep_masked(const std::byte* from, int64_t stride, int64_t n, float other, float* scores) {
  const V hidden = set(other);
  int64_t i = 0;
  if (stride == 1) {
    const hn::Rebind<uint8_t, D> bytes;
    for (; i + kLanes <= n; i += kLanes) {
      const auto wide = hn::PromoteTo(DI(), hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(from) + i));
      const M keep = hn::RebindMask(D(), hn::Ne(wide, hn::Zero(DI())));
      store(hn::IfThenElse(keep, load(scores + i), hidden), scores + i);
    }
  }
  for (; i < n; ++i)
    if (from[i * stride] == std::byte{0}) scores[i] = other;
}

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
