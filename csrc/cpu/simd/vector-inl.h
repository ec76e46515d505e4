// Rows of fp32 or fp16 as fp32 vectors, whole or in part. Included once per Highway target, inside foreach_target.
#if defined(HEXANE_CPU_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEXANE_CPU_VECTOR_INL_H_
#undef HEXANE_CPU_VECTOR_INL_H_
#else
#define HEXANE_CPU_VECTOR_INL_H_
#endif

#include <hwy/highway.h>

#include <cstring>

#include "core/engine_half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using hwy::float16_t;

// The vector of all fp32 code. The vector has at most 16 lanes, so that all files use the same type.
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
using M = hn::Mask<D>;
inline constexpr int64_t kLanes = hn::MaxLanes(D());

HWY_INLINE V set(float x) { return hn::Set(D(), x); }

HWY_INLINE V load(const float* from) { return hn::LoadU(D(), from); }
HWY_INLINE V load(const float16_t* from) { return hexane::HWY_NAMESPACE::load_half(D(), from); }
HWY_INLINE void store(V x, float* to) { hn::StoreU(x, D(), to); }
HWY_INLINE void store(V x, float16_t* to) { hexane::HWY_NAMESPACE::store_half(D(), x, to); }
HWY_INLINE V load(const engine_half* from) { return hexane::HWY_NAMESPACE::load_engine_half(D(), from); }
HWY_INLINE void store(V x, engine_half* to) { hexane::HWY_NAMESPACE::store_engine_half(D(), x, to); }

// Loads the first n < kLanes values; other lanes are `fill`.
template <class T>
HWY_INLINE V load_part(const T* from, int64_t n, float fill = 0) {
#if HWY_MEM_OPS_MIGHT_FAULT == 0
  if constexpr (sizeof(T) == 4) {
    const M mask = hn::FirstN(D(), static_cast<size_t>(n));
    return hn::IfThenElse(mask, hn::MaskedLoad(mask, D(), from), set(fill));
  }
#endif
  alignas(64) T part[kLanes] = {};
  const int64_t count = HWY_MIN(n, kLanes);  // equals n; avoids GCC 14's false warning of a copy beyond `part`
  for (int64_t i = 0; i < count; ++i) part[i] = from[i];
  return hn::IfThenElse(hn::FirstN(D(), static_cast<size_t>(n)), load(part), set(fill));
}

template <class T>
HWY_INLINE void store_part(V x, T* to, int64_t n) {
  alignas(64) T part[kLanes];
  store(x, part);
  const int64_t count = HWY_MIN(n, kLanes);
  for (int64_t i = 0; i < count; ++i) to[i] = part[i];
}

// Computes y[i] = f(x[i]) for n values; x may be y. A tail is computed as a whole vector, so a result does not depend
// on its index.
template <class From, class To, class F>
HWY_INLINE void map(const From* x, To* y, int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(f(load(x + i)), y + i);
  if (i < n) store_part(f(load_part(x + i, n - i)), y + i, n - i);
}

// Computes y[i] = f(a[i], b[i]).
template <class A, class B, class To, class F>
HWY_INLINE void map(const A* a, const B* b, To* y, int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(f(load(a + i), load(b + i)), y + i);
  if (i < n) store_part(f(load_part(a + i, n - i), load_part(b + i, n - i)), y + i, n - i);
}

// Converts n values, `stride` bytes apart (0: one value, repeated), to fp32. scatter() converts back.
template <class T>
HWY_INLINE void gather(const std::byte* from, int64_t stride, float* to, int64_t n) {
  const auto* dense = reinterpret_cast<const T*>(from);
  if (stride == sizeof(T)) return map(dense, to, n, [](V x) HWY_ATTR { return x; });
  if (stride == 0 && n > 0) {
    const float value = hn::GetLane(load_part(dense, 1));
    for (int64_t i = 0; i < n; ++i) to[i] = value;
    return;
  }
  alignas(64) T part[kLanes] = {};
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = n - i < kLanes ? n - i : kLanes;
    for (int64_t j = 0; j < count; ++j) std::memcpy(part + j, from + (i + j) * stride, sizeof(T));
    if (count == kLanes)
      store(load(part), to + i);
    else
      store_part(load(part), to + i, count);
  }
}

template <class T>
HWY_INLINE void scatter(const float* from, std::byte* to, int64_t stride, int64_t n) {
  if (stride == sizeof(T)) return map(from, reinterpret_cast<T*>(to), n, [](V x) HWY_ATTR { return x; });
  alignas(64) T part[kLanes];
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = n - i < kLanes ? n - i : kLanes;
    store(count == kLanes ? load(from + i) : load_part(from + i, count), part);
    for (int64_t j = 0; j < count; ++j) std::memcpy(to + (i + j) * stride, part + j, sizeof(T));
  }
}

}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
