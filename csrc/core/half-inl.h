// fp16 to fp32 and back, rounding to nearest even, with the same bits on every Highway target. Highway's conversions
// are used only where they are instructions: on other targets they mishandle infinities. Included once per Highway
// target, inside foreach_target.
#if defined(HEXANE_CORE_HALF_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEXANE_CORE_HALF_INL_H_
#undef HEXANE_CORE_HALF_INL_H_
#else
#define HEXANE_CORE_HALF_INL_H_
#endif

#include <hwy/highway.h>

#include "core/instruction_sets.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// True on targets whose fp16 conversion is an instruction.
inline constexpr bool kHasHalf = HEXANE_HAS_AVX2 || HEXANE_HAS_NEON;

template <class D>
HWY_INLINE hn::Vec<D> load_half(D d, const hwy::float16_t* from) {
  if constexpr (kHasHalf) {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, D>(), from));
  } else {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const auto bits = hn::PromoteTo(du, hn::LoadU(hn::Rebind<uint16_t, D>(), reinterpret_cast<const uint16_t*>(from)));
    const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7fffu)));
    const auto scaled = hn::BitCast(du, hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112f)));
    const auto special = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, (0x7c00 << 13) - 1));
    const auto nan = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x7c00 << 13));
    const auto infinite = hn::Or(hn::And(hn::BitCast(du, hn::VecFromMask(di, special)), hn::Set(du, 0x7f800000u)),
                                 hn::And(hn::BitCast(du, hn::VecFromMask(di, nan)), hn::Set(du, 0x400000u)));
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)));
    return hn::BitCast(d, hn::Or(hn::Or(scaled, infinite), sign));
  }
}

template <class D>
HWY_INLINE void store_half(D d, hn::Vec<D> value, hwy::float16_t* to) {
  if constexpr (kHasHalf) {
    const hn::Rebind<hwy::float16_t, D> dh;
    hn::StoreU(hn::DemoteTo(dh, value), dh, to);
  } else {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const hn::Rebind<uint16_t, D> dh;
    const auto bits = hn::BitCast(du, value);
    const auto sign = hn::And(bits, hn::Set(du, 0x80000000u));
    const auto magnitude = hn::Xor(bits, sign);
    const auto order = hn::BitCast(di, magnitude);
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
    const auto rounded = hn::Add(hn::Add(magnitude, odd), hn::Set(du, 0xfffu - (112u << 23)));
    // Adding 0.5 leaves a subnormal result, rounded, in the low bits.
    const auto tiny =
        hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f))), hn::Set(du, 0x3f000000u));
    const auto nan = hn::Or(hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 0x3ffu)), hn::Set(du, 0x7e00u));
    auto half = hn::BitCast(di, hn::ShiftRight<13>(rounded));
    half = hn::IfThenElse(hn::Lt(order, hn::Set(di, 0x38800000)), hn::BitCast(di, tiny), half);
    half = hn::IfThenElse(hn::Gt(order, hn::Set(di, 0x477fefff)), hn::Set(di, 0x7c00), half);
    half = hn::IfThenElse(hn::Gt(order, hn::Set(di, 0x7f800000)), hn::BitCast(di, nan), half);
    half = hn::Or(half, hn::BitCast(di, hn::ShiftRight<16>(sign)));
    hn::StoreU(hn::DemoteTo(dh, half), dh, reinterpret_cast<uint16_t*>(to));
  }
}

}  // namespace hexane::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
