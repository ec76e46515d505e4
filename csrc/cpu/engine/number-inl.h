// fp16 as the engine's products read it: exponent 31 means finite numbers, as in a format without infinities. Included
// once per Highway target, inside foreach_target.
#if defined(HEXANE_CPU_ENGINE_NUMBER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEXANE_CPU_ENGINE_NUMBER_INL_H_
#undef HEXANE_CPU_ENGINE_NUMBER_INL_H_
#else
#define HEXANE_CPU_ENGINE_NUMBER_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Converts fp16 bits to numbers. d: the tag of float vectors.
template <class D>
HWY_INLINE hn::Vec<D> number_of(D d, hn::Vec<hn::Rebind<uint16_t, D>> half) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::PromoteTo(du, half);
  const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7fffu)));
  const auto value = hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112f));
  return hn::Or(value, hn::BitCast(d, hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)))));
}

// Converts a number, which fp16 holds exactly, to fp16 bits.
template <class D>
HWY_INLINE hn::Vec<hn::Rebind<uint16_t, D>> half_of(D d, hn::Vec<D> number) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto size = hn::Abs(number);
  const auto normal = hn::Sub(hn::ShiftRight<13>(hn::BitCast(du, size)), hn::Set(du, 112u << 10));
  const auto subnormal = hn::BitCast(du, hn::ConvertTo(di, hn::Mul(size, hn::Set(d, 0x1p24f))));
  const auto is_normal = hn::RebindMask(du, hn::Ge(size, hn::Set(d, 0x1p-14f)));
  const auto sign = hn::ShiftLeft<15>(hn::ShiftRight<31>(hn::BitCast(du, number)));
  return hn::TruncateTo(hn::Rebind<uint16_t, D>(), hn::Or(hn::IfThenElse(is_normal, normal, subnormal), sign));
}

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
