// Sums and moments of a row, always in the same order. Included once per Highway target, inside foreach_target.
#if defined(HEXANE_CPU_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEXANE_CPU_NORM_INL_H_
#undef HEXANE_CPU_NORM_INL_H_
#else
#define HEXANE_CPU_NORM_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "cpu/simd/vector-inl.h"
#include "cpu/sums.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {

// Computes kSums sums over n indices, each in four vectors of partial sums. step(i, count, sums) adds the terms of
// indices [i, i + count) to each sum; count is at most a vector.
template <int kSums, class F>
HWY_INLINE void sums_of_places(int64_t n, const F& step, float (&sums)[kSums]) {
  constexpr int kWays = 4;
  constexpr int64_t kStep = kWays * kLanes;
  const auto clear = [](V(&ways)[kWays][kSums]) HWY_ATTR {
    for (int k = 0; k < kWays; ++k)
      for (int s = 0; s < kSums; ++s) ways[k][s] = set(0);
  };
  const auto add = [&](int64_t i, int64_t end, V(&ways)[kWays][kSums]) HWY_ATTR {
    for (; i + kStep <= end; i += kStep)
      for (int k = 0; k < kWays; ++k) step(i + k * kLanes, kLanes, ways[k]);
    for (int k = 0; i < end; ++k, i += kLanes) step(i, std::min(end - i, kLanes), ways[k]);
  };
  V total[kWays][kSums];
  clear(total);
  const int64_t block = sum_block(n / kStep) * kStep;
  if (n <= block) {
    add(0, n, total);
  } else {
    for (int64_t i = 0; i < n; i += block) {
      V part[kWays][kSums];
      clear(part);
      add(i, std::min(n, i + block), part);
      for (int k = 0; k < kWays; ++k)
        for (int s = 0; s < kSums; ++s) total[k][s] = hn::Add(total[k][s], part[k][s]);
    }
  }
  for (int s = 0; s < kSums; ++s)
    sums[s] =
        hn::GetLane(hn::SumOfLanes(D(), hn::Add(hn::Add(total[0][s], total[1][s]), hn::Add(total[2][s], total[3][s]))));
}

// Computes kSums sums over a row. step(v, sums) adds the terms of a vector v to each sum. Lanes after the end hold
// `fill`, whose term has to be 0.
template <int kSums, class T, class F>
HWY_INLINE void row_sums(const T* x, int64_t n, float fill, const F& step, float (&sums)[kSums]) {
  sums_of_places(
      n,
      [&](int64_t i, int64_t count, V* total)
          HWY_ATTR { step(count == kLanes ? load(x + i) : load_part(x + i, count, fill), total); },
      sums);
}

// A row is normalised as (x - mean) * scale + shift. If numbers vary little about a large mean, the mean in fp32 is not
// precise enough. `shift` corrects the mean's rounding error.
struct Moments {
  float mean = 0, scale, shift = 0;  // scale: 1 / sqrt(variance + epsilon)
};

HWY_INLINE V normal(V x, V mean, V scale, V shift) { return hn::MulAdd(hn::Sub(x, mean), scale, shift); }

template <class T>
HWY_INLINE Moments row_moments(const T* x, int64_t n, float epsilon) {
  float sum[1], about_mean[2];
  const float count = static_cast<float>(n);
  row_sums<1>(
      x, n, 0, [](V v, V* total) HWY_ATTR { total[0] = hn::Add(total[0], v); }, sum);
  const float mean = sum[0] / count;
  const V center = set(mean);
  row_sums<2>(
      x, n, mean,
      [&](V v, V* total) HWY_ATTR {
        const V d = hn::Sub(v, center);
        total[0] = hn::Add(total[0], d);
        total[1] = hn::MulAdd(d, d, total[1]);
      },
      about_mean);
  const float rest = about_mean[0] / count, variance = about_mean[1] / count - rest * rest;
  const float scale = 1 / std::sqrt((variance < 0 ? 0 : variance) + epsilon);
  return {mean, scale, -rest * scale};
}

}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
