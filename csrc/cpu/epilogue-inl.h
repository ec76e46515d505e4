// What happens to accumulators on their way to memory: bias, epilogue, rounding. Included once per target, inside
// foreach_target.
#if defined(HEXANE_CPU_EPILOGUE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEXANE_CPU_EPILOGUE_INL_H_
#undef HEXANE_CPU_EPILOGUE_INL_H_
#else
#define HEXANE_CPU_EPILOGUE_INL_H_
#endif

#include <cstring>

#include "cpu/gemm.h"
#include "cpu/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

using D = hn::CappedTag<float, kPanelLanes>;
using V = hn::Vec<D>;
// Lanes is a constant on every target in use; a panel is this many vectors, and a tile as many panels as registers
// allow.
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
constexpr int kPanelVectors = static_cast<int>(kPanelLanes) / kLanes;
constexpr int kPanelsAtOnce = kPanelVectors == 1 ? static_cast<int>(kTilePanels) : 1;

HWY_INLINE V load(const float* from) { return hn::LoadU(D(), from); }
HWY_INLINE V load(const hwy::float16_t* from) { return load_half(D(), from); }

// The first n of kLanes values at `from`, zeros after.
template <class T>
HWY_INLINE V load_n(const T* from, int64_t n) {
  if (n >= kLanes) return load(from);
  T padded[kLanes] = {};
  if (n > 0) std::memcpy(padded, from, n * sizeof(T));
  return load(padded);
}

HWY_INLINE V load_any(const std::byte* from, bool half, int64_t index, int64_t n) {
  return half ? load_n(reinterpret_cast<const hwy::float16_t*>(from) + index, n)
              : load_n(reinterpret_cast<const float*>(from) + index, n);
}

HWY_INLINE void store_any(V value, std::byte* to, bool half, int64_t index, int64_t n) {
  const D d;
  if (half) {
    auto* p = reinterpret_cast<hwy::float16_t*>(to) + index;
    if (n >= kLanes) return store_half(d, value, p);
    hwy::float16_t padded[kLanes];
    store_half(d, value, padded);
    if (n > 0) std::memcpy(p, padded, n * sizeof(*p));
  } else {
    auto* p = reinterpret_cast<float*>(to) + index;
    if (n >= kLanes) return hn::StoreU(value, d, p);
    float padded[kLanes];
    hn::StoreU(value, d, padded);
    if (n > 0) std::memcpy(p, padded, n * sizeof(*p));
  }
}

// NaN passes through.
HWY_INLINE V clamp(V x, V low, V high) {
  x = hn::IfThenElse(hn::Lt(x, low), low, x);
  return hn::IfThenElse(hn::Gt(x, high), high, x);
}

// Applies bias and epilogue to rows x vectors of accumulators in registers, then stores them.
template <int kRows, int kVectors>
HWY_INLINE void finish(const Tile& t, int64_t column, V (&acc)[kRows][kVectors]) {
  const D d;
  if (t.bias) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const V bias = load(t.bias + column + v * kLanes);
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m) acc[m][v] = hn::Add(acc[m][v], bias);
    }
  }
  const ResolvedEpilogue& e = *t.epilogue;
  for (int i = 0; i < e.count; ++i) {
    const ResolvedSlot& slot = e.slots[i];
    if (slot.kind == ResolvedSlot::kClamp) {
      const V low = hn::Set(d, slot.alpha), high = hn::Set(d, slot.beta);
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) acc[m][v] = clamp(acc[m][v], low, high);
    } else if (slot.kind == ResolvedSlot::kAdd) {
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          const int64_t at = column + v * kLanes;
          acc[m][v] = hn::Add(acc[m][v], load_any(t.extra[slot.extra][m], t.half_output, at, t.num_columns - at));
        }
    } else {
      HWY_ALIGN float row[kVectors * kLanes];
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) hn::Store(acc[m][v], d, row + v * kLanes);
        slot.function(row, kVectors * kLanes, slot.alpha, slot.beta);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) acc[m][v] = hn::Load(d, row + v * kLanes);
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = column + v * kLanes;
      store_any(acc[m][v], t.out[m], t.half_output, at, t.num_columns - at);
    }
}

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
