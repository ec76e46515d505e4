// The passes over a row that softmax is made of. Included once per target, inside foreach_target.
#if defined(HEXANE_CPU_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEXANE_CPU_SOFTMAX_INL_H_
#undef HEXANE_CPU_SOFTMAX_INL_H_
#else
#define HEXANE_CPU_SOFTMAX_INL_H_
#endif

#include "cpu/simd/math-inl.h"
#include "cpu/sums.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {

inline constexpr int kWays = 4;

// A NaN may get lost in a maximum: its own exponential brings it into the sum.
template <class T>
HWY_INLINE float row_max(const T* x, int64_t n) {
  V top[kWays] = {set(-kInfinity), set(-kInfinity), set(-kInfinity), set(-kInfinity)};
  int64_t i = 0;
  for (; i + kWays * kLanes <= n; i += kWays * kLanes)
    for (int k = 0; k < kWays; ++k) top[k] = hn::Max(top[k], load(x + i + k * kLanes));
  for (; i + kLanes <= n; i += kLanes) top[0] = hn::Max(top[0], load(x + i));
  if (i < n) top[1] = hn::Max(top[1], load_part(x + i, n - i, -kInfinity));
  return hn::GetLane(hn::MaxOfLanes(D(), hn::Max(hn::Max(top[0], top[1]), hn::Max(top[2], top[3]))));
}

// e^(x - top) into `exps`; returns the sum.
template <class T>
HWY_INLINE float exponentials(const T* x, float* exps, int64_t n, float top) {
  const V shift = set(top);
  V total[kWays] = {set(0), set(0), set(0), set(0)};
  const int64_t block = sum_block(n / (kWays * kLanes)) * kWays * kLanes;
  for (int64_t i = 0; i < n;) {
    V sum[kWays] = {set(0), set(0), set(0), set(0)};
    const int64_t end = HWY_MIN(n, i + block);
    for (; i + kWays * kLanes <= end; i += kWays * kLanes)
      for (int k = 0; k < kWays; ++k) {
        const V e = exp_of_negative(hn::Sub(load(x + i + k * kLanes), shift));
        store(e, exps + i + k * kLanes);
        sum[k] = hn::Add(sum[k], e);
      }
    for (; i + kLanes <= end; i += kLanes) {
      const V e = exp_of_negative(hn::Sub(load(x + i), shift));
      store(e, exps + i);
      sum[0] = hn::Add(sum[0], e);
    }
    if (i < end) {
      const V e = exp_of_negative(hn::Sub(load_part(x + i, n - i, -kInfinity), shift));
      store_part(e, exps + i, n - i);
      sum[1] = hn::Add(sum[1], hn::IfThenElseZero(hn::FirstN(D(), static_cast<size_t>(n - i)), e));
      i = n;
    }
    for (int k = 0; k < kWays; ++k) total[k] = hn::Add(total[k], sum[k]);
  }
  return hn::GetLane(hn::SumOfLanes(D(), hn::Add(hn::Add(total[0], total[1]), hn::Add(total[2], total[3]))));
}

}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
