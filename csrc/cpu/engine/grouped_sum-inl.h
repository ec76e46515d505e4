// The sum of a reduction on the engine, by the best known model. Groups of four consecutive numbers are added in order.
// Each addition keeps 11 bits after the exponent of the larger operand and truncates the lower bits. The sums of four
// are added exactly. The model reproduces every published measurement of a short sum, but none of the published sums of
// 4096 numbers (docs/numerics/sums.md). Included once per Highway target, inside foreach_target.
#if defined(HEXANE_CPU_GROUPED_SUM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEXANE_CPU_GROUPED_SUM_INL_H_
#undef HEXANE_CPU_GROUPED_SUM_INL_H_
#else
#define HEXANE_CPU_GROUPED_SUM_INL_H_
#endif

#include "cpu/engine/exact_sum-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {

HWY_INLINE V add_aligned(V a, V b) {
  const hn::RebindToUnsigned<D> du;
  const auto exponent = hn::And(hn::BitCast(du, hn::Max(hn::Abs(a), hn::Abs(b))), hn::Set(du, 0x7f800000u));
  const auto no_less = hn::Max(exponent, hn::Set(du, (127u - 24) << 23));
  const auto place = hn::Sub(no_less, hn::Set(du, 11u << 23)), inverse = hn::Sub(hn::Set(du, 254u << 23), place);
  const auto cut = [&](V x) HWY_ATTR {
    return hn::Mul(hn::Trunc(hn::Mul(x, hn::BitCast(D(), inverse))), hn::BitCast(D(), place));
  };
  return hn::Add(cut(a), cut(b));
}

// Adds a stream of values. The four numbers of a group lie in the same lane of four vectors.
class GroupedSum {
 public:
  HWY_INLINE void add(const float* values, int64_t n) {
    while (n > 0) {
      const int64_t count = HWY_MIN(n, kRoom - filled_);
      std::memcpy(values_ + filled_, values, count * sizeof(float));
      filled_ += count, values += count, n -= count;
      if (filled_ == kRoom) flush();
    }
  }
  HWY_INLINE double total() {
    while (filled_ < kRoom) values_[filled_++] = 0;
    flush();
    return sums_.total();
  }

 private:
  static constexpr int64_t kRoom = 4 * kLanes;

  HWY_INLINE void flush() {
    V a, b, c, d;
    hn::LoadInterleaved4(D(), values_, a, b, c, d);
    sums_.add(add_aligned(add_aligned(add_aligned(a, b), c), d));
    filled_ = 0;
  }

  alignas(64) float values_[kRoom];
  int64_t filled_ = 0;
  ExactSums sums_;
};

// Like GroupedSum, with a column of values in each lane.
class GroupedSums {
 public:
  HWY_INLINE GroupedSums() : group_(set(0)) {}  // an implicit constructor lacks this instruction set
  HWY_INLINE void add(V x) {
    group_ = filled_ ? add_aligned(group_, x) : x;
    if (++filled_ == 4) flush();
  }
  HWY_INLINE const double* totals() {
    while (filled_) add(set(0));
    return sums_.of;
  }

 private:
  HWY_INLINE void flush() {
    sums_.add(group_);
    filled_ = 0;
  }

  V group_;
  int filled_ = 0;
  ExactSums sums_;
};

}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
