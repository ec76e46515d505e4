// Sums and moments of a row, always in the same order. Included once per target, inside foreach_target.
#if defined(HEXANE_CPU_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEXANE_CPU_NORM_INL_H_
#undef HEXANE_CPU_NORM_INL_H_
#else
#define HEXANE_CPU_NORM_INL_H_
#endif

#include <cmath>

#include "cpu/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {

// The sum of f(x) in four vectors of partial sums.
template <class T, class F>
HWY_INLINE float row_sum(const T* x, int64_t n, const F& f) {
  constexpr int kWays = 4;
  V total[kWays] = {set(0), set(0), set(0), set(0)};
  int64_t i = 0;
  for (; i + kWays * kLanes <= n; i += kWays * kLanes)
    for (int k = 0; k < kWays; ++k) total[k] = hn::Add(total[k], f(load(x + i + k * kLanes)));
  for (int k = 0; i < n; ++k, i += kLanes) {
    if (n - i >= kLanes) {
      total[k] = hn::Add(total[k], f(load(x + i)));
    } else {
      const V part = f(load_part(x + i, n - i));
      total[k] = hn::Add(total[k], hn::IfThenElseZero(hn::FirstN(D(), static_cast<size_t>(n - i)), part));
    }
  }
  const V all = hn::Add(hn::Add(total[0], total[1]), hn::Add(total[2], total[3]));
  return hn::GetLane(hn::SumOfLanes(D(), all));
}

struct Moments {
  float mean;
  float scale;  // 1 / sqrt(variance + epsilon)
};

template <class T>
HWY_INLINE Moments row_moments(const T* x, int64_t n, float epsilon) {
  const float mean = row_sum(x, n, [](V v) HWY_ATTR { return v; }) / static_cast<float>(n);
  const V center = set(mean);
  const float squares = row_sum(x, n, [&](V v) HWY_ATTR {
    const V d = hn::Sub(v, center);
    return hn::Mul(d, d);
  });
  return {mean, 1 / std::sqrt(squares / static_cast<float>(n) + epsilon)};
}

}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
