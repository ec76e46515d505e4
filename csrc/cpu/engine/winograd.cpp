// The factors of Winograd's F(2, 3), rounded to fp16 as the engine does.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/engine/winograd.cpp"
#include "cpu/engine/winograd.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/simd/epilogue-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

// To fp16, halves away from zero. A sum of two fp16 numbers that fp32 cannot hold is nowhere near a half.
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
    const float* d = row - (second ? channels : 0);  // of this pair
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

}  // namespace

FactorsFunction factors_of_target() { return factors; }

}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(factors_of_target);

FactorsFunction winograd_factors() {
  static const FactorsFunction function = HWY_DYNAMIC_DISPATCH(factors_of_target)();
  return function;
}

// x as fp16, halves away from zero; what is larger than any goes on as exponent 31.
static uint16_t half_away(double x) {
  const double size = std::abs(x);
  uint64_t bits;
  std::memcpy(&bits, &size, sizeof(bits));
  const auto half = size < 0x1p-14 ? static_cast<uint64_t>(size * 0x1p24 + 0.5)  // subnormal
                                   : ((bits + (uint64_t{1} << 41)) >> 42) - (uint64_t{1023 - 15} << 10);
  return static_cast<uint16_t>(std::min<uint64_t>(half, 0x7fff) | (std::signbit(x) ? 0x8000u : 0u));
}

void winograd_weights(const float taps[3], uint16_t factors[4]) {
  const double g0 = taps[0], g1 = taps[1], g2 = taps[2];
  const double values[4] = {g0, (g0 + g1 + g2) / 2, (g0 - g1 + g2) / 2, g2};
  for (int i = 0; i < 4; ++i) factors[i] = half_away(values[i]);
}

}  // namespace hexane::cpu
#endif
