// Bulk fp16 <-> fp32 conversion. Large outputs are written past the caches, because a normal write to a cache line
// reads the line first.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/fp16.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include <hwy/cache_control.h>

#include <algorithm>

#include "core/fp16.h"
#include "core/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::HWY_NAMESPACE {
namespace {

// Outputs larger than this are written past the caches: a few times one core's usual share of the last-level cache.
constexpr size_t kStreamBytes = size_t{16} << 20;

using D = hn::CappedTag<float, 16>;

HWY_INLINE hwy::float16_t* half(fp16* p) { return reinterpret_cast<hwy::float16_t*>(p); }
HWY_INLINE const hwy::float16_t* half(const fp16* p) { return reinterpret_cast<const hwy::float16_t*>(p); }

// Stores a line of 64 bytes past the caches.
template <class T>
HWY_INLINE void stream_line(const T* line, T* to) {
  const hn::CappedTag<T, 64 / sizeof(T)> d;
  for (size_t i = 0; i < 64 / sizeof(T); i += hn::Lanes(d)) hn::Stream(hn::Load(d, line + i), d, to + i);
}

// Returns the number of elements of `to` before its first whole line.
template <class T>
size_t before_line(const T* to, size_t n) {
  const size_t past = reinterpret_cast<uintptr_t>(to) % 64;
  return past % sizeof(T) ? n : std::min(n, past ? (64 - past) / sizeof(T) : 0);
}

// Converts to fp16. Returns whether all results are finite: the largest magnitude, compared as bits, decides.
bool narrow(const float* from, fp16* to, size_t n) {
  const D d;
  const hn::Rebind<uint16_t, D> dh;
  const size_t lanes = hn::Lanes(d);
  const auto magnitude = hn::Set(dh, 0x7fff);
  auto most = hn::Zero(dh);
  const auto see = [&](const fp16* halves) {
    const auto bits = hn::LoadU(dh, reinterpret_cast<const uint16_t*>(halves));
    most = hn::Max(most, hn::And(bits, magnitude));
  };
  uint16_t single = 0;
  const auto one = [&](size_t i) {
    to[i] = to_fp16(from[i]);
    single = std::max<uint16_t>(single, to[i].bits & 0x7fff);
  };
  size_t i = 0;
  if (n * sizeof(fp16) > kStreamBytes) {
    for (const size_t head = before_line(to, n); i < head; ++i) one(i);
    for (; i + 32 <= n; i += 32) {
      alignas(64) fp16 line[32];
      for (size_t j = 0; j < 32; j += lanes) {
        store_half(d, hn::LoadU(d, from + i + j), half(line + j));
        see(line + j);
      }
      stream_line(reinterpret_cast<const uint16_t*>(line), reinterpret_cast<uint16_t*>(to + i));
    }
    hwy::FlushStream();
  }
  for (; i + lanes <= n; i += lanes) {
    store_half(d, hn::LoadU(d, from + i), half(to + i));
    see(to + i);
  }
  for (; i < n; ++i) one(i);
  uint16_t seen[16];
  hn::StoreU(most, dh, seen);
  return std::max(single, *std::max_element(seen, seen + lanes)) < 0x7c00;
}

void widen(const fp16* from, float* to, size_t n) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  if (n * sizeof(float) > kStreamBytes) {
    for (const size_t head = before_line(to, n); i < head; ++i) to[i] = to_float(from[i]);
    for (; i + 16 <= n; i += 16)
      for (size_t j = 0; j < 16; j += lanes) hn::Stream(load_half(d, half(from + i + j)), d, to + i + j);
    hwy::FlushStream();
  }
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    hn::StoreU(load_half(d, half(from + i)), d, to + i);
    hn::StoreU(load_half(d, half(from + i + lanes)), d, to + i + lanes);
  }
  for (; i < n; ++i) to[i] = to_float(from[i]);
}

}  // namespace
}  // namespace hexane::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane {

HWY_EXPORT(narrow);
HWY_EXPORT(widen);

bool convert(std::span<const float> from, std::span<fp16> to) {
  return HWY_DYNAMIC_DISPATCH(narrow)(from.data(), to.data(), from.size());
}

void convert(std::span<const fp16> from, std::span<float> to) {
  HWY_DYNAMIC_DISPATCH(widen)(from.data(), to.data(), from.size());
}

}  // namespace hexane
#endif
