// The engine's multiply-accumulate path: fp16 products in fixed point, exact to the bit.
//
// A product is rounded to a multiple of 2^-16, halves away from zero. A product is dropped if the exponents of its
// factors add up to -17 or less (a subnormal counts as exponent -14; exponent 31 is a number like any other). The
// accumulator holds whole multiples of 2^-16; an accumulator that reaches 32768 in size stays infinite. The result is
// rounded to fp16, halves away from zero. These rules reproduce the results of M1, M2 Max, M4 Max, M5 Pro and M6
// (docs/numerics.md).
//
// There are three ways to add products. The ways give the same bits wherever their conditions hold (bounds-inl.h):
//
//   SmallProducts   below 64, and no accumulator reaches 32768: one fused multiply-add rounds a product
//   BoundedSums     no accumulator reaches 32768, and so no product does: a product is converted to an integer
//   AnyProducts     any operands: sums in fp64, with a test of the accumulator after each addition
//
// Each way defines the type of its accumulators and these functions: `start` (from the bias), `weight` and `input` (an
// operand with values derived from it once), `add`, and `result` (fp16 values).
//
// Included once per Highway target, inside foreach_target.
#if defined(HEXANE_CPU_ENGINE_FIXED_POINT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEXANE_CPU_ENGINE_FIXED_POINT_INL_H_
#undef HEXANE_CPU_ENGINE_FIXED_POINT_INL_H_
#else
#define HEXANE_CPU_ENGINE_FIXED_POINT_INL_H_
#endif

#include <cmath>

#include "core/instruction_sets.h"
#include "cpu/simd/epilogue-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

using DI = hn::RebindToSigned<D>;
using VI = hn::Vec<DI>;

// False where multiply-add rounds twice. Without fused multiply-adds SmallProducts adjusts the exact product, not the
// packed weight.
constexpr bool kFused = HEXANE_HAS_AVX2 || HEXANE_HAS_NEON;

constexpr float kMagic = 192.0f;
constexpr int32_t kMagicBits = 0x43400000;
constexpr int32_t kExponentBits = 0x7f800000;
constexpr int32_t kLeastExponent = (127 - 14) << 23;  // the exponent of a subnormal fp16
constexpr int32_t kThresholdBase = (127 + 127 - 16)
                                   << 23;  // minus the exponent of x: the least exponent of a kept weight

// Packs a weight. If multiply-add is fused, the weight's magnitude grows by one unit in the last place (see
// SmallProducts).
HWY_INLINE V packed(V x) {
  if constexpr (!kFused) return x;
  const DI di;
  const VI bits = hn::BitCast(di, x), place = hn::VecFromMask(di, hn::Ne(hn::Add(bits, bits), hn::Zero(di)));
  return hn::BitCast(D(), hn::Sub(bits, place));  // a set lane of a mask is -1
}
HWY_INLINE V unpacked(V x) {
  if constexpr (!kFused) return x;
  const DI di;
  const VI bits = hn::BitCast(di, x), place = hn::VecFromMask(di, hn::Ne(hn::Add(bits, bits), hn::Zero(di)));
  return hn::BitCast(D(), hn::Add(bits, place));
}

// Returns the initial accumulators in units of 2^-16: a vector of biases, or zeros if bias is null.
HWY_INLINE VI start_units(const float* bias) {
  if (!bias) return hn::Zero(DI());
  const V x = load(bias);
  return hn::ConvertTo(DI(), hn::MulAdd(x, hn::Set(D(), 0x1p16f), hn::CopySign(hn::Set(D(), 0.5f), x)));
}

// Rounds accumulators below 32768 to fp16 values, halves away from zero.
HWY_INLINE V round_fixed(VI acc) {
  const D d;
  const DI di;
  const hn::RebindToUnsigned<D> du;
  const VI sign = hn::BroadcastSignBit(acc);
  const VI size = hn::Sub(hn::Xor(acc, sign), sign);
  // Integers from 2^24 on lose low bits in fp32. The lost bits lie below the bit that decides the rounding.
  const auto wide = hn::Gt(size, hn::Set(di, (1 << 24) - 1));
  const V exact = hn::ConvertTo(d, hn::IfThenElse(wide, hn::And(size, hn::Set(di, ~0xff)), size));
  const auto up = hn::Add(hn::BitCast(du, exact), hn::Set(du, 0x1000u));
  const V half = hn::BitCast(d, hn::And(up, hn::Set(du, ~0x1fffu)));
  return hn::Or(hn::Mul(half, hn::Set(d, 0x1p-16f)),
                hn::BitCast(d, hn::And(sign, hn::BitCast(di, hn::Set(du, 0x80000000u)))));
}

// ---- what counts ----

HWY_INLINE V weight_size(V weight) { return hn::Max(hn::Abs(weight), hn::Set(D(), 0x1p-14f)); }

// Returns the magnitude of the smallest weight whose product with x is not dropped.
HWY_INLINE V least_weight(V x) {
  const DI di;
  const VI power = hn::Max(hn::And(hn::BitCast(di, x), hn::Set(di, kExponentBits)), hn::Set(di, kLeastExponent));
  return hn::BitCast(D(), hn::Sub(hn::Set(di, kThresholdBase), power));
}

// ---- three ways ----

// A product below 64 is added to 192. The addition rounds the product to 2^-16, the last place of numbers from 128 to
// 256, and the bits of the sum minus the bits of 192 are the integer to accumulate. Packed weights have magnitudes one
// fp32 unit in the last place larger, so ties round away from zero instead of to even. The larger weight moves a
// product of two 11-bit significands by no more than half of its own last place, so only ties change sides.
struct SmallProducts {
  using Sum = VI;
  struct Weight {
    HWY_INLINE Weight() {}  // an implicit constructor would not be compiled for this instruction set
    HWY_INLINE Weight(V v, V s) : value(v), size(s) {}
    V value, size;
  };
  struct Input {
    V value, least;
  };
  static HWY_INLINE Weight weight(V packed_weight) { return {packed_weight, weight_size(packed_weight)}; }
  static HWY_INLINE Input input(V x) { return {x, least_weight(x)}; }

  // The accumulators start lower by 192's bits for each product, since each product adds these bits.
  static HWY_INLINE Sum start(const float* bias, int64_t num_products) {
    const uint32_t magic = static_cast<uint32_t>(num_products) * static_cast<uint32_t>(kMagicBits);
    return hn::Sub(start_units(bias), hn::Set(DI(), static_cast<int32_t>(magic)));
  }
  static HWY_INLINE void add(Sum& sum, const Input& x, const Weight& w) {
    const D d;
    const DI di;
    const V magic = hn::Set(d, kMagic);
    V rounded;
    if constexpr (kFused)
      rounded = hn::MulAdd(x.value, w.value, magic);
    else
      rounded = hn::Add(hn::BitCast(d, hn::Add(hn::BitCast(di, hn::Mul(x.value, w.value)), hn::Set(di, 1))), magic);
    sum = hn::Add(sum, hn::BitCast(di, hn::IfThenElse(hn::Ge(w.size, x.least), rounded, magic)));
  }
  static HWY_INLINE V result(Sum sum) { return round_fixed(sum); }
};

// Computes a product in units of 2^-16, adds half with its sign, and truncates. fp32 holds that sum exactly for
// products below 128. From 128 on a product is a multiple of four units, and the rounding removes the half.
struct BoundedSums {
  using Sum = VI;
  struct Weight {
    HWY_INLINE Weight() {}
    HWY_INLINE Weight(V u, V h, V s) : units(u), half(h), size(s) {}
    V units, half, size;
  };
  struct Input {
    V value, sign, least;
  };
  static HWY_INLINE Weight weight(V packed_weight) {
    const V w = unpacked(packed_weight);
    return {hn::Mul(w, hn::Set(D(), 0x1p16f)), hn::CopySign(hn::Set(D(), 0.5f), w), weight_size(w)};
  }
  static HWY_INLINE Input input(V x) { return {x, hn::And(x, hn::Set(D(), -0.0f)), least_weight(x)}; }
  static HWY_INLINE Sum start(const float* bias, int64_t) { return start_units(bias); }
  static HWY_INLINE void add(Sum& sum, const Input& x, const Weight& w) {
    const V product = hn::MulAdd(x.value, w.units, hn::Xor(w.half, x.sign));
    sum = hn::Add(sum, hn::ConvertTo(DI(), hn::IfThenElseZero(hn::Ge(w.size, x.least), product)));
  }
  static HWY_INLINE V result(Sum sum) { return round_fixed(sum); }
};

// Accumulators in units of 2^-16, in fp64: a vector in two halves. After an accumulator reaches 2^31 nothing is added,
// so it keeps its sign.
struct AnyProducts {
  using D64 = hn::Repartition<double, D>;
  using V64 = hn::Vec<D64>;
  struct Sum {
    HWY_INLINE Sum() {}
    HWY_INLINE Sum(V64 l, V64 h) : low(l), high(h) {}
    V64 low, high;
  };
  struct Weight {
    HWY_INLINE Weight() {}
    HWY_INLINE Weight(V u, V s) : units(u), size(s) {}
    V units, size;
  };
  using Input = SmallProducts::Input;

  static HWY_INLINE Weight weight(V packed_weight) {
    const V w = unpacked(packed_weight);
    return {hn::Mul(w, hn::Set(D(), 0x1p16f)), weight_size(w)};
  }
  static HWY_INLINE Input input(V x) { return SmallProducts::input(x); }
  static HWY_INLINE Sum start(const float* bias, int64_t) {
    Sum sum{hn::Zero(D64()), hn::Zero(D64())};
    if (bias) add(sum, input(hn::Set(D(), 1.0f)), {hn::Mul(load(bias), hn::Set(D(), 0x1p16f)), hn::Set(D(), 1.0f)});
    return sum;
  }
  static HWY_INLINE void add(Sum& sum, const Input& x, const Weight& w) {
    const V units = hn::IfThenElseZero(hn::Ge(w.size, x.least), w.units);
    const hn::Half<D> half;
    add_half(sum.low, hn::LowerHalf(half, x.value), hn::LowerHalf(half, units));
    add_half(sum.high, hn::UpperHalf(half, x.value), hn::UpperHalf(half, units));
  }
  static HWY_INLINE V result(const Sum& sum) {
    const D d;
    const DI di;
    const hn::Half<DI> half;
    const V units = round_fixed(hn::Combine(di, hn::DemoteTo(half, sum.high), hn::DemoteTo(half, sum.low)));
    const V size = hn::Combine(d, overflow(sum.high), overflow(sum.low));
    return hn::IfThenElse(hn::Eq(size, hn::Zero(d)), units, size);
  }

 private:
  using Halves = hn::Vec<hn::Half<D>>;

  static HWY_INLINE V64 limit() { return hn::Set(D64(), 0x1p31); }
  static HWY_INLINE void add_half(V64& sum, Halves x, Halves units) {
    const D64 d;
    const V64 product = hn::Mul(hn::PromoteTo(d, x), hn::PromoteTo(d, units));
    const V64 rounded = hn::Trunc(hn::Add(product, hn::CopySign(hn::Set(d, 0.5), product)));
    sum = hn::IfThenElse(hn::Lt(hn::Abs(sum), limit()), hn::Add(sum, rounded), sum);
  }
  // Returns infinity with the sum's sign if the sum has reached the limit, else 0.
  static HWY_INLINE Halves overflow(V64 sum) {
    const V64 infinity = hn::CopySign(hn::Set(D64(), INFINITY), sum);
    return hn::DemoteTo(hn::Half<D>(), hn::IfThenElseZero(hn::Ge(hn::Abs(sum), limit()), infinity));
  }
};

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
