// Accumulators of reductions: four vectors of partial results. After kSteps steps the partial results are merged into a
// second level, and after kSteps merges into a third, so that the rounding errors of long sums stay small.
// Included once per Highway target.
#if defined(HEXANE_CPU_ACCUMULATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEXANE_CPU_ACCUMULATE_INL_H_
#undef HEXANE_CPU_ACCUMULATE_INL_H_
#else
#define HEXANE_CPU_ACCUMULATE_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "cpu/elementwise/elementwise.h"
#include "cpu/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

constexpr int kWays = 4;
constexpr int64_t kSteps = 128;
constexpr int64_t kBlock = kWays * kLanes;

// The struct of each reduction has step(total, x, way), which adds a value to partial result number `way`, and merge(),
// which joins two partial results. A step with kFill changes nothing.

struct Sum {
  static constexpr float kFill = 0, kIdentity = 0;
  HWY_INLINE V step(V total, V x, int) const { return hn::Add(total, x); }
  HWY_INLINE V merge(V a, V b) const { return hn::Add(a, b); }
};

struct SumAbs : Sum {
  HWY_INLINE V step(V total, V x, int) const { return hn::Add(total, hn::Abs(x)); }
};

struct SumSquare : Sum {
  HWY_INLINE V step(V total, V x, int) const { return hn::MulAdd(x, x, total); }
};

struct Product {
  static constexpr float kFill = 1, kIdentity = 1;
  HWY_INLINE V step(V total, V x, int) const { return hn::Mul(total, x); }
  HWY_INLINE V merge(V a, V b) const { return hn::Mul(a, b); }
};

// Keeps a NaN.
struct Maximum {
  static constexpr float kFill = -kInfinity, kIdentity = -kInfinity;
  HWY_INLINE V step(V top, V x, int) const { return hn::IfThenElse(hn::Or(hn::Gt(x, top), hn::IsNaN(x)), x, top); }
  HWY_INLINE V merge(V a, V b) const { return step(a, b, 0); }
};

struct Minimum {
  static constexpr float kFill = kInfinity, kIdentity = kInfinity;
  HWY_INLINE V step(V low, V x, int) const { return hn::IfThenElse(hn::Or(hn::Lt(x, low), hn::IsNaN(x)), x, low); }
  HWY_INLINE V merge(V a, V b) const { return step(a, b, 0); }
};

template <class R>
struct Accumulator {
  const R& reduce;
  V part[kWays], middle[kWays], total[kWays];
  int64_t steps = 0, folds = 0;

  explicit Accumulator(const R& r) : reduce(r) {
    for (int k = 0; k < kWays; ++k) part[k] = middle[k] = total[k] = set(R::kIdentity);
  }
  // Returns the number of steps until the next level is due, at most n. The caller has to pass the steps that it takes
  // to count().
  HWY_INLINE int64_t run(int64_t n) const { return std::min(n, kSteps - steps); }
  HWY_INLINE void count(int64_t n) {
    steps += n;
    if (HWY_UNLIKELY(steps == kSteps)) fold();
  }
  HWY_NOINLINE void fold() {
    for (int k = 0; k < kWays; ++k) {
      middle[k] = reduce.merge(middle[k], part[k]);
      part[k] = set(R::kIdentity);
    }
    steps = 0;
    if (++folds == kSteps) fold_middle();
  }
  HWY_INLINE void fold_middle() {
    for (int k = 0; k < kWays; ++k) {
      total[k] = reduce.merge(total[k], middle[k]);
      middle[k] = set(R::kIdentity);
    }
    folds = 0;
  }
  HWY_INLINE void finish() {
    fold();
    fold_middle();
  }
};

// Loads the first n columns, `stride` bytes apart; n > 0.
template <class T>
HWY_INLINE V load_columns(const std::byte* in, int64_t stride, int64_t n) {
  const T* x = reinterpret_cast<const T*>(in);
  if (stride == sizeof(T)) return n >= kLanes ? load(x) : load_part(x, n);
  alignas(64) T part[kLanes] = {};
  for (int64_t i = 0; i < std::min(n, kLanes); ++i) std::memcpy(part + i, in + i * stride, sizeof(T));
  return load(part);
}

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
