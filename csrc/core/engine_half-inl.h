// Vectors of engine_half (core/engine_half.h). Included once per Highway target, inside foreach_target.
#if defined(HEXANE_CORE_ENGINE_HALF_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEXANE_CORE_ENGINE_HALF_INL_H_
#undef HEXANE_CORE_ENGINE_HALF_INL_H_
#else
#define HEXANE_CORE_ENGINE_HALF_INL_H_
#endif

#include <limits>

#include "core/engine_half.h"
#include "core/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::HWY_NAMESPACE {

template <class D>
HWY_INLINE hn::Vec<D> load_engine_half(D d, const engine_half* from) {
  const auto x = load_half(d, reinterpret_cast<const hwy::float16_t*>(from));
  return hn::IfThenElse(hn::IsNaN(x), hn::Set(d, std::numeric_limits<float>::infinity()), x);
}

// Rounds to the nearest fp16 number. A result beyond fp16's largest number stays a larger fp32 number. NaN becomes 0.
template <class D>
HWY_INLINE hn::Vec<D> round_to_engine_half(D d, hn::Vec<D> x) {
  const hn::RebindToUnsigned<D> du;
  const auto number = hn::IfThenZeroElse(hn::IsNaN(x), x), size = hn::Abs(number);
  const auto up = hn::Add(hn::BitCast(du, size), hn::Set(du, 0x1000u));
  const auto normal = hn::BitCast(d, hn::And(up, hn::Set(du, ~uint32_t{0x1fff})));
  const auto units = hn::Mul(size, hn::Set(d, 0x1p24f)), whole = hn::Floor(units);  // multiples of the least subnormal
  const auto more = hn::IfThenElseZero(hn::Ge(hn::Sub(units, whole), hn::Set(d, 0.5f)), hn::Set(d, 1.0f));
  const auto subnormal = hn::Mul(hn::Add(whole, more), hn::Set(d, 0x1p-24f));
  return hn::CopySign(hn::IfThenElse(hn::Lt(size, hn::Set(d, 0x1p-14f)), subnormal, normal), number);
}

template <class D>
HWY_INLINE void store_engine_half(D d, hn::Vec<D> value, engine_half* to) {
  store_half(d, round_to_engine_half(d, value), reinterpret_cast<hwy::float16_t*>(to));
}

}  // namespace hexane::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
