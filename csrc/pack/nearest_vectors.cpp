#include "pack/nearest_vectors.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "pack/nearest_vectors.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include <hwy/highway.h>

#include <limits>

HWY_BEFORE_NAMESPACE();
namespace hexane::pack::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using DF = hn::CappedTag<float, 16>;
using DI = hn::RebindToSigned<DF>;

// Processes two registers of vectors at a time, so that they share the loads of an entry.
template <size_t V>
void find(const float* x, std::span<const float> entries, Nearest& out) {
  const DF df;
  const DI di;
  const size_t lanes = hn::Lanes(df);
  for (size_t at = 0; at < kNearestLanes; at += 2 * lanes) {
    hn::Vec<DF> low[V], high[V];
    for (size_t n = 0; n < V; ++n) {
      low[n] = hn::LoadU(df, x + n * kNearestLanes + at);
      high[n] = hn::LoadU(df, x + n * kNearestLanes + at + lanes);
    }
    auto least_low = hn::Set(df, std::numeric_limits<float>::infinity()), least_high = least_low;
    auto entry_low = hn::Zero(di), entry_high = entry_low;
    const size_t count = entries.size() / V;
    for (size_t e = 0; e < count; ++e) {
      auto sum_low = hn::Zero(df), sum_high = sum_low;
      for (size_t n = 0; n < V; ++n) {
        const auto number = hn::Set(df, entries[e * V + n]);
        const auto a = hn::Sub(low[n], number), b = hn::Sub(high[n], number);
        sum_low = hn::Add(sum_low, hn::Mul(a, a));  // a fused multiply-add would round differently
        sum_high = hn::Add(sum_high, hn::Mul(b, b));
      }
      const auto index = hn::Set(di, static_cast<int32_t>(e));
      entry_low = hn::IfThenElse(hn::RebindMask(di, hn::Lt(sum_low, least_low)), index, entry_low);
      entry_high = hn::IfThenElse(hn::RebindMask(di, hn::Lt(sum_high, least_high)), index, entry_high);
      least_low = hn::Min(sum_low, least_low);
      least_high = hn::Min(sum_high, least_high);
    }
    hn::StoreU(least_low, df, out.distance + at);
    hn::StoreU(least_high, df, out.distance + at + lanes);
    hn::StoreU(entry_low, di, out.entry + at);
    hn::StoreU(entry_high, di, out.entry + at + lanes);
  }
}

void nearest(const float* x, size_t size, std::span<const float> entries, Nearest& out) {
  size == 2 ? find<2>(x, entries, out) : find<4>(x, entries, out);
}

}  // namespace
}  // namespace hexane::pack::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::pack {
HWY_EXPORT(nearest);
void find_nearest(const float* x, size_t size, std::span<const float> entries, Nearest& out) {
  HWY_DYNAMIC_DISPATCH(nearest)(x, size, entries, out);
}
}  // namespace hexane::pack
#endif
