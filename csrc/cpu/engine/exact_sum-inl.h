// Exact sums of fp16 numbers. The sums are in fp64, which holds every multiple of the smallest fp16 subnormal up to
// 2^29. Included once per Highway target, inside foreach_target.
#if defined(HEXANE_CPU_EXACT_SUM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEXANE_CPU_EXACT_SUM_INL_H_
#undef HEXANE_CPU_EXACT_SUM_INL_H_
#else
#define HEXANE_CPU_EXACT_SUM_INL_H_
#endif

#include <algorithm>

#include "cpu/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {

HWY_INLINE V rounded(V x) { return hexane::HWY_NAMESPACE::round_to_engine_half(D(), x); }
inline float rounded(double x) { return to_float(to_engine_half(x)); }

struct ExactSums {
  double of[kLanes] = {};

  HWY_INLINE void add(V x, int64_t lanes = kLanes) {
    alignas(64) float values[kLanes];
    store(x, values);
    for (int64_t i = 0; i < lanes; ++i) of[i] += values[i];
  }
  double total() const {
    double sum = 0;
    for (const double one : of) sum += one;
    return sum;
  }
};

// Returns the exact sum of f(x). The results of f have to be fp16 numbers.
template <class T, class F>
HWY_INLINE double exact_sum(const T* x, int64_t n, const F& f) {
  ExactSums sums;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sums.add(f(load(x + i)));
  if (i < n) sums.add(f(load_part(x + i, n - i)), n - i);
  return sums.total();
}

}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
