// The passes over a row of softmax. Included once per Highway target, inside foreach_target.
#if defined(HEXANE_CPU_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEXANE_CPU_SOFTMAX_INL_H_
#undef HEXANE_CPU_SOFTMAX_INL_H_
#else
#define HEXANE_CPU_SOFTMAX_INL_H_
#endif

#include "cpu/simd/math-inl.h"

#include <algorithm>
#include "cpu/sums.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {

inline constexpr int kWays = 4;

// Returns a row's maximum. The maximum may miss a NaN; the NaN still reaches the sum of exponentials.
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

// Stores e^(x - top) in `exps` and returns their sum.
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
        const V e = weight_of_negative(hn::Sub(load(x + i + k * kLanes), shift));
        store(e, exps + i + k * kLanes);
        sum[k] = hn::Add(sum[k], e);
      }
    for (; i + kLanes <= end; i += kLanes) {
      const V e = weight_of_negative(hn::Sub(load(x + i), shift));
      store(e, exps + i);
      sum[0] = hn::Add(sum[0], e);
    }
    if (i < end) {
      const V e = weight_of_negative(hn::Sub(load_part(x + i, n - i, -kInfinity), shift));
      store_part(e, exps + i, n - i);
      sum[1] = hn::Add(sum[1], hn::IfThenElseZero(hn::FirstN(D(), static_cast<size_t>(n - i)), e));
      i = n;
    }
    for (int k = 0; k < kWays; ++k) total[k] = hn::Add(total[k], sum[k]);
  }
  return hn::GetLane(hn::SumOfLanes(D(), hn::Add(hn::Add(total[0], total[1]), hn::Add(total[2], total[3]))));
}

// The logarithm of a line's sum keeps the maxima (e^0 each) separate from the sum of the other exponentials. Adding a
// small sum to 1 would round most of it away, and if one element dominates, its result is this small sum.

// The sum of a line's exponentials, in two parts: the number of its maxima, and the sum of all other exponentials.
struct LogSum {
  V maxima, rest;

  HWY_INLINE void add(V x) {
    const auto is_top = hn::Eq(x, set(0));
    maxima = hn::Add(maxima, hn::IfThenElseZero(is_top, set(1)));
    rest = hn::Add(rest, hn::IfThenZeroElse(is_top, exp_of_negative(x)));
  }
  HWY_INLINE void add(const LogSum& part) {
    maxima = hn::Add(maxima, part.maxima);
    rest = hn::Add(rest, part.rest);
  }
  HWY_INLINE V value() const { return hn::Add(log(maxima), log1p(hn::Div(rest, maxima))); }
};

// Returns the logarithm of the sum of e^(x - top).
template <class T>
HWY_INLINE V log_of_sum(const T* x, int64_t n, V top) {
  LogSum sum{set(0), set(0)};
  const int64_t block = sum_block(n / kLanes) * kLanes;
  for (int64_t i = 0; i < n;) {
    LogSum part{set(0), set(0)};
    for (const int64_t end = std::min(n, i + block); i < end; i += kLanes)
      part.add(hn::Sub(n - i >= kLanes ? load(x + i) : load_part(x + i, n - i, -kInfinity), top));
    sum.add(part);
  }
  sum.maxima = hn::SumOfLanes(D(), sum.maxima);
  sum.rest = hn::SumOfLanes(D(), sum.rest);
  return sum.value();
}

}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
