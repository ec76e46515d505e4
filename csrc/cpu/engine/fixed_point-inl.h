// The engine's multiply-accumulate path: fp16 products in fixed point, exact to the bit.
//
// A product is rounded to a multiple of 2^-16, halves away from zero, and left out where the exponents of its factors
// add up to -17 or less (a subnormal counts as exponent -14; exponent 31 is a number like any other). The accumulator
// holds whole multiples of 2^-16; one that reaches 32768 in size stays infinite. The result is rounded to fp16, halves
// away from zero. This reproduces what M1, M2 Max, M4 Max, M5 Pro and M6 return (docs/numerics.md).
//
// The fast way lets one fused multiply-add do the rounding. Added to 192, any product below 64 is rounded to 2^-16,
// because that is the last place of numbers from 128 to 256; its bits less those of 192 are the integer to accumulate.
// To turn ties to even into ties away from zero, weights are packed one fp32 place larger in size: that moves a product
// of two 11-bit significands by no more than half of its own last place, so only ties change sides.
//
// Included once per target, inside foreach_target.
#if defined(HEXANE_CPU_ENGINE_FIXED_POINT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEXANE_CPU_ENGINE_FIXED_POINT_INL_H_
#undef HEXANE_CPU_ENGINE_FIXED_POINT_INL_H_
#else
#define HEXANE_CPU_ENGINE_FIXED_POINT_INL_H_
#endif

#include <cmath>

#include "cpu/simd/epilogue-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

using DI = hn::RebindToSigned<D>;
using VI = hn::Vec<DI>;

// Where multiply-add rounds twice, the exact product is moved instead of the weight.
constexpr bool kFused = HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON;

constexpr float kMagic = 192.0f;
constexpr int32_t kMagicBits = 0x43400000;
constexpr int32_t kExponentBits = 0x7f800000;
constexpr int32_t kLeastExponent = (127 - 14) << 23;  // of a subnormal fp16
constexpr int32_t kThresholdBase = (127 + 127 - 16)
                                   << 23;  // less the exponent of x: that of the least weight that counts

// The same number one place larger in size, and back.
inline float larger(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits += (bits & 0x7fffffff) != 0;
  std::memcpy(&x, &bits, sizeof bits);
  return x;
}
inline float packed_number(float x) {
  if constexpr (!kFused) return x;
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits -= (bits & 0x7fffffff) != 0;
  std::memcpy(&x, &bits, sizeof bits);
  return x;
}

inline int64_t fixed(double x) { return static_cast<int64_t>(std::round(x * 65536.0)); }

// Of accumulators below 32768: fp16 values, halves away from zero.
HWY_INLINE V round_fixed(VI acc) {
  const D d;
  const DI di;
  const hn::RebindToUnsigned<D> du;
  const VI sign = hn::BroadcastSignBit(acc);
  const VI size = hn::Sub(hn::Xor(acc, sign), sign);
  // What fp32 cannot hold lies below the place that decides.
  const auto wide = hn::Gt(size, hn::Set(di, (1 << 24) - 1));
  const V exact = hn::ConvertTo(d, hn::IfThenElse(wide, hn::And(size, hn::Set(di, ~0xff)), size));
  const auto up = hn::Add(hn::BitCast(du, exact), hn::Set(du, 0x1000u));
  const V half = hn::BitCast(d, hn::And(up, hn::Set(du, ~0x1fffu)));
  return hn::Or(hn::Mul(half, hn::Set(d, 0x1p-16f)),
                hn::BitCast(d, hn::And(sign, hn::BitCast(di, hn::Set(du, 0x80000000u)))));
}

// ---- any numbers ----

// Exponent of a number of fp16.
inline int exponent(float x) { return x == 0 ? -14 : std::max(std::ilogb(x), -14); }

// One accumulator, whose terms are added in order.
class Accumulator {
 public:
  explicit Accumulator(float bias) : units_(fixed(bias)) {}

  void add(float x, float packed_weight) {
    const float y = packed_number(packed_weight);
    if (!overflows() && exponent(x) + exponent(y) > -17) units_ += fixed(static_cast<double>(x) * y);
  }
  float result() const {
    if (overflows()) return std::copysign(INFINITY, static_cast<float>(units_));
    return hn::GetLane(round_fixed(hn::Set(DI(), static_cast<int32_t>(units_))));
  }

 private:
  bool overflows() const { return std::abs(units_) >= int64_t{1} << 31; }
  int64_t units_;
};

// ---- small numbers ----

HWY_INLINE V weight_size(V weight) { return hn::Max(hn::Abs(weight), hn::Set(D(), 0x1p-14f)); }

// The size of the least weight whose product with x counts.
HWY_INLINE V least_weight(V x) {
  const DI di;
  const VI power = hn::Max(hn::And(hn::BitCast(di, x), hn::Set(di, kExponentBits)), hn::Set(di, kLeastExponent));
  return hn::BitCast(D(), hn::Sub(hn::Set(di, kThresholdBase), power));
}

// A product in units, and the bits of 192.
HWY_INLINE VI product(V x, V weight, V size, V least) {
  const D d;
  const DI di;
  const V magic = hn::Set(d, kMagic);
  V sum;
  if constexpr (kFused)
    sum = hn::MulAdd(x, weight, magic);
  else
    sum = hn::Add(hn::BitCast(d, hn::Add(hn::BitCast(di, hn::Mul(x, weight)), hn::Set(di, 1))), magic);
  return hn::BitCast(di, hn::IfThenElse(hn::Ge(size, least), sum, magic));
}

// What so many products start from: the bias of a vector of columns, less the bits of 192 that come with each.
HWY_INLINE VI start(const float* bias, int64_t num_products) {
  HWY_ALIGN int32_t units[kLanes];
  const uint32_t magic = static_cast<uint32_t>(num_products) * static_cast<uint32_t>(kMagicBits);
  for (int i = 0; i < kLanes; ++i)
    units[i] = static_cast<int32_t>((bias ? static_cast<uint32_t>(fixed(bias[i])) : 0) - magic);
  return hn::Load(DI(), units);
}

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
