// Converts fp32 to 8-bit and 16-bit integers and back. Included once per Highway target, inside foreach_target.
#if defined(HEXANE_CPU_QUANTIZE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEXANE_CPU_QUANTIZE_INL_H_
#undef HEXANE_CPU_QUANTIZE_INL_H_
#else
#define HEXANE_CPU_QUANTIZE_INL_H_
#endif

#include "cpu/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {

using DI = hn::RebindToSigned<D>;
using VI = hn::Vec<DI>;

// Rounds x, which must fit in int32, half to even; NaN gives 0.
HWY_INLINE VI rounded(V x) { return hn::NearestInt(hn::IfThenElseZero(hn::Eq(x, x), x)); }

// Clamps x to [low, high], rounds it and adds the zero point. The range has to contain 0 and fit in int32.
HWY_INLINE VI quantized(V x, V low, V high, VI zero) {
  const V bounded = hn::Min(high, hn::Max(low, x));
  return hn::Add(rounded(bounded), zero);
}

// Loads the first n of kLanes small integers as int32; other lanes are 0.
template <class T>
HWY_INLINE VI load_integers(const T* from, int64_t n) {
  if constexpr (sizeof(T) == 4) {
    if (n >= kLanes) return hn::LoadU(DI(), from);
    alignas(64) T part[kLanes] = {};
    for (int64_t i = 0; i < n; ++i) part[i] = from[i];
    return hn::Load(DI(), part);
  } else {
    const hn::Rebind<T, DI> d;
    if (n >= kLanes) return hn::PromoteTo(DI(), hn::LoadU(d, from));
    alignas(64) T part[kLanes] = {};
    for (int64_t i = 0; i < n; ++i) part[i] = from[i];
    return hn::PromoteTo(DI(), hn::LoadU(d, part));
  }
}

// Stores the first n of kLanes integers with saturation.
template <class T>
HWY_INLINE void store_integers(VI x, T* to, int64_t n) {
  const hn::Rebind<T, DI> d;
  const auto narrow = hn::DemoteTo(d, x);
  if (n >= kLanes) return hn::StoreU(narrow, d, to);
  alignas(64) T part[kLanes];
  hn::StoreU(narrow, d, part);
  for (int64_t i = 0; i < n; ++i) to[i] = part[i];
}

}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
