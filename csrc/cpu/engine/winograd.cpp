// Computes the factors of Winograd's F(2, 3), rounded to fp16 as on the engine.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/engine/winograd.cpp"
#include "cpu/engine/winograd.h"

#include <cstring>

#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/engine/number-inl.h"
#include "cpu/simd/epilogue-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

// Rounds to fp16, halves away from zero. x is a sum of two fp16 numbers. A sum that fp32 cannot hold exactly is far
// from a tie.
HWY_INLINE V round_half(V x) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const auto up = hn::Add(hn::BitCast(du, hn::Abs(x)), hn::Set(du, 0x1000u));
  const V size = hn::Min(hn::BitCast(d, hn::And(up, hn::Set(du, ~0x1fffu))), hn::Set(d, 65536.0f));
  return hn::CopySign(size, x);
}

void factors(const float* row, int64_t channels, int64_t outputs, float* even, float* odd) {
  for (int64_t x = 0; x < outputs; ++x, row += channels) {
    const bool second = x % 2;
    const float* d = row - (second ? channels : 0);  // the first pixel of this pair of outputs
    float* to = second ? odd : even;
    for (int64_t c = 0; c < channels; c += kLanes) {
      const int64_t n = channels - c;
      const auto pixel = [&](int i) HWY_ATTR { return load_n(d + i * channels + c, n); };
      const V sum = round_half(hn::Add(pixel(1), pixel(2))), rest = hn::Sub(pixel(2), pixel(1));
      store_n(second ? sum : round_half(hn::Sub(pixel(0), pixel(2))), to + c, n);
      store_n(second ? hn::Neg(round_half(rest)) : sum, to + channels + c, n);
      store_n(round_half(second ? hn::Sub(pixel(3), pixel(1)) : rest), to + 2 * channels + c, n);
    }
    (second ? odd : even) += 3 * channels;
  }
}

// Rounds fp64 numbers to fp16, halves away from zero. Numbers that are too large become the largest number of exponent
// 31.
template <class DD>
HWY_INLINE hn::Vec<hn::Rebind<uint16_t, DD>> wide_to_half(DD d, hn::Vec<DD> x) {
  const hn::RebindToUnsigned<DD> du;
  const hn::Rebind<float, DD> df;
  const auto size = hn::Abs(x), up = hn::BitCast(d, hn::Add(hn::BitCast(du, size), hn::Set(du, uint64_t{1} << 41)));
  const auto normal = hn::BitCast(d, hn::And(hn::BitCast(du, up), hn::Set(du, ~((uint64_t{1} << 42) - 1))));
  const auto units = hn::Floor(hn::MulAdd(size, hn::Set(d, 0x1p24), hn::Set(d, 0.5)));
  const auto rounded = hn::IfThenElse(hn::Lt(size, hn::Set(d, 0x1p-14)), hn::Mul(units, hn::Set(d, 0x1p-24)), normal);
  return half_of(df, hn::DemoteTo(df, hn::CopySign(hn::Min(rounded, hn::Set(d, 131008.0)), x)));
}

// Computes the factors of kernel rows. The sum of three fp16 numbers is exact in fp64.
void taps(const uint16_t* rows, int64_t count, uint16_t* even, uint16_t* odd) {
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> df;
  const hn::Rebind<uint16_t, decltype(d)> dh;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto convert = [&](const uint16_t* from, uint16_t* to_even, uint16_t* to_odd) HWY_ATTR {
    hn::Vec<decltype(dh)> h0, h1, h2;
    hn::LoadInterleaved3(dh, from, h0, h1, h2);
    const auto g0 = hn::PromoteTo(d, number_of(df, h0)), g1 = hn::PromoteTo(d, number_of(df, h1)),
               g2 = hn::PromoteTo(d, number_of(df, h2));
    const auto outer = hn::Add(g0, g2), half = hn::Set(d, 0.5);
    const auto sum = wide_to_half(d, hn::Mul(hn::Add(outer, g1), half)),
               difference = wide_to_half(d, hn::Mul(hn::Sub(outer, g1), half));
    hn::StoreInterleaved3(h0, sum, difference, dh, to_even);
    hn::StoreInterleaved3(sum, difference, h2, dh, to_odd);
  };
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) convert(rows + 3 * i, even + 3 * i, odd + 3 * i);
  if (i == count) return;
  uint16_t part[3][3 * 8] = {};
  const auto bytes = static_cast<size_t>(3 * (count - i)) * sizeof(uint16_t);
  std::memcpy(part[0], rows + 3 * i, bytes);
  convert(part[0], part[1], part[2]);
  std::memcpy(even + 3 * i, part[1], bytes);
  std::memcpy(odd + 3 * i, part[2], bytes);
}

}  // namespace

FactorsFunction factors_of_target() { return factors; }
WinogradTapsFunction taps_of_target() { return taps; }

}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(factors_of_target);
HWY_EXPORT(taps_of_target);

FactorsFunction winograd_factors() {
  static const FactorsFunction function = HWY_DYNAMIC_DISPATCH(factors_of_target)();
  return function;
}

WinogradTapsFunction winograd_taps() {
  static const WinogradTapsFunction function = HWY_DYNAMIC_DISPATCH(taps_of_target)();
  return function;
}

}  // namespace hexane::cpu
#endif
