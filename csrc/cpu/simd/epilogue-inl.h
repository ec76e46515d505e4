// From accumulators to stored results: totals of long sums, bias, epilogue, rounding. Included once per Highway target,
// inside foreach_target.
#if defined(HEXANE_CPU_EPILOGUE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEXANE_CPU_EPILOGUE_INL_H_
#undef HEXANE_CPU_EPILOGUE_INL_H_
#else
#define HEXANE_CPU_EPILOGUE_INL_H_
#endif

#include <cstring>

#include "core/half-inl.h"
#include "core/instruction_sets.h"
#include "cpu/matmul/gemm.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, kPanelLanes>;
using V = hn::Vec<D>;
// The number of lanes is a constant on every Highway target in use. A panel is kPanelVectors vectors; a tile has as
// many panels as fit into the registers.
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
constexpr int kPanelVectors = static_cast<int>(kPanelLanes) / kLanes;
constexpr int kPanelsAtOnce = kPanelVectors == 1 ? static_cast<int>(kTilePanels) : 1;

using hexane::HWY_NAMESPACE::load_half;
using hexane::HWY_NAMESPACE::store_half;

HWY_INLINE V load(const float* from) { return hn::LoadU(D(), from); }
HWY_INLINE V load(const hwy::float16_t* from) { return load_half(D(), from); }

// True if there are masked loads and stores of 16-bit lanes that do not touch memory outside of the mask.
constexpr bool kHasMasks = HEXANE_HAS_AVX512;

// Loads the first n < kLanes values where there are no masks; other lanes are 0.
template <class T>
HWY_NOINLINE V load_partial(const T* from, int64_t n) {
  T padded[kLanes] = {};
  if (n > 0) std::memcpy(padded, from, n * sizeof(T));
  return load(padded);
}

// Loads the first n of kLanes values; other lanes are 0.
template <class T>
HWY_INLINE V load_n(const T* from, int64_t n) {
  if (n >= kLanes) return load(from);
  if constexpr (kHasMasks && sizeof(T) == 4) {
    return hn::MaskedLoad(hn::FirstN(D(), static_cast<size_t>(n)), D(), from);
  } else if constexpr (kHasMasks) {
    const hn::Rebind<uint16_t, D> bits;
    const auto part =
        hn::MaskedLoad(hn::FirstN(bits, static_cast<size_t>(n)), bits, reinterpret_cast<const uint16_t*>(from));
    return hn::PromoteTo(D(), hn::BitCast(hn::Rebind<hwy::float16_t, D>(), part));
  }
  return load_partial(from, n);
}

template <class T>
HWY_INLINE void store_n(V value, T* to, int64_t n) {
  const D d;
  if constexpr (sizeof(T) == 4) {
    if (n >= kLanes) return hn::StoreU(value, d, to);
    if constexpr (kHasMasks) return hn::BlendedStore(value, hn::FirstN(d, static_cast<size_t>(n)), d, to);
  } else {
    if (n >= kLanes) return store_half(d, value, to);
    if constexpr (kHasMasks) {
      const hn::Rebind<uint16_t, D> bits;
      const auto half = hn::BitCast(bits, hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), value));
      return hn::BlendedStore(half, hn::FirstN(bits, static_cast<size_t>(n)), bits, reinterpret_cast<uint16_t*>(to));
    }
  }
  T padded[kLanes];
  if constexpr (sizeof(T) == 4)
    hn::StoreU(value, d, padded);
  else
    store_half(d, value, padded);
  if (n > 0) std::memcpy(to, padded, n * sizeof(T));
}

HWY_INLINE V load_any(const std::byte* from, bool half, int64_t index, int64_t n) {
  return half ? load_n(reinterpret_cast<const hwy::float16_t*>(from) + index, n)
              : load_n(reinterpret_cast<const float*>(from) + index, n);
}

HWY_INLINE void store_any(V value, std::byte* to, bool half, int64_t index, int64_t n) {
  if (half) return store_n(value, reinterpret_cast<hwy::float16_t*>(to) + index, n);
  store_n(value, reinterpret_cast<float*>(to) + index, n);
}

// Rounds to bf16, to nearest even; subnormal results become 0.
HWY_INLINE auto to_bf16_bits(V x) {
  const hn::RebindToUnsigned<D> d;
  const auto bits = hn::BitCast(d, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d, 0x7fff))));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(d, 0x40));
  const auto narrow = hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(x)), quiet, rounded);
  const auto sign = hn::And(narrow, hn::Set(d, 0x8000));
  const auto normal = hn::Ne(hn::And(narrow, hn::Set(d, 0x7f80)), hn::Zero(d));
  return hn::TruncateTo(hn::Rebind<uint16_t, D>(), hn::IfThenElse(normal, narrow, sign));
}

// Loads the first n of kLanes numbers in bf16; other lanes are 0.
HWY_INLINE V load_bf16_n(const uint16_t* from, int64_t n) {
  const hn::RebindToUnsigned<D> wide;
  const hn::Rebind<uint16_t, D> d;
  uint16_t padded[kLanes];
  auto bits = hn::Zero(d);
  if (n >= kLanes) {
    bits = hn::LoadU(d, from);
  } else if constexpr (kHasMasks) {
    bits = hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(n)), d, from);
  } else {
    hn::StoreU(bits, d, padded);
    if (n > 0) std::memcpy(padded, from, n * sizeof(uint16_t));
    bits = hn::LoadU(d, padded);
  }
  return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(wide, bits)));
}

struct Bf16 {
  uint16_t bits;
};
HWY_INLINE V load(const Bf16* from) { return load_bf16_n(&from->bits, kLanes); }

// Stores the first n of kLanes values as bf16.
HWY_INLINE void store_bf16(V value, std::byte* to, int64_t index, int64_t n) {
  const hn::Rebind<uint16_t, D> d;
  auto* at = reinterpret_cast<uint16_t*>(to) + index;
  const auto bits = to_bf16_bits(value);
  if (n >= kLanes) return hn::StoreU(bits, d, at);
  if constexpr (kHasMasks) return hn::BlendedStore(bits, hn::FirstN(d, static_cast<size_t>(n)), d, at);
  uint16_t padded[kLanes];
  hn::StoreU(bits, d, padded);
  if (n > 0) std::memcpy(at, padded, n * sizeof(uint16_t));
}

// The totals of a long sum's full blocks. add() adds the sums in registers to the totals and sets the registers to
// zero.
template <int kRows, int kVectors>
struct Totals {
  HWY_ALIGN float sums[kRows][kVectors * kLanes] = {};

  HWY_INLINE void add(V (&acc)[kRows][kVectors]) {
    add_to(acc);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        hn::Store(acc[m][v], D(), sums[m] + v * kLanes);
        acc[m][v] = hn::Zero(D());
      }
  }
  HWY_INLINE void add_to(V (&acc)[kRows][kVectors]) const {
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) acc[m][v] = hn::Add(hn::Load(D(), sums[m] + v * kLanes), acc[m][v]);
  }
};

// A NaN in x passes through: if an operand is NaN, x86 returns the second operand and NEON returns the NaN.
HWY_INLINE V at_least(V low, V x) { return hn::Max(low, x); }
HWY_INLINE V at_most(V high, V x) { return hn::Min(high, x); }

// Applies bias and epilogue to `rows` rows of n accumulators in memory, and stores the results. The rows are `pitch`
// floats apart and padded to whole vectors.
inline HWY_NOINLINE void finish_in_memory(const Tile& t, int64_t column, int rows, int64_t n, float* acc,
                                          int64_t pitch) {
  const D d;
  const ResolvedEpilogue& e = *t.epilogue;
  const int64_t num_columns = HWY_MIN(n, t.num_columns - column);
  const auto each = [&](float* from, int64_t count, auto&& f) HWY_ATTR {
    for (int64_t i = 0; i < count; i += kLanes) hn::StoreU(f(load(from + i), i), d, from + i);
  };
  // Rows without a vector of padding between them are one run, because a function takes less time for a long run.
  const bool joined = rows > 1 && pitch - num_columns < kLanes;
  const int runs = joined ? 1 : rows;
  const int64_t count = joined ? rows * pitch : num_columns;
  if (t.bias)
    for (int m = 0; m < rows; ++m)
      each(acc + m * pitch, num_columns,
           [&](V x, int64_t i) HWY_ATTR { return hn::Add(x, load(t.bias + column + i)); });
  for (int s = 0; s < e.count; ++s) {
    const ResolvedSlot& slot = e.slots[s];
    const V low = hn::Set(d, slot.alpha), high = hn::Set(d, slot.beta);
    if (slot.kind == ResolvedSlot::kAdd) {
      for (int m = 0; m < rows; ++m) {
        const std::byte* extra = t.extra[slot.extra][m];
        each(acc + m * pitch, num_columns, [&](V x, int64_t i) HWY_ATTR {
          return hn::Add(x, load_any(extra, t.half_output, column + i, num_columns - i));
        });
      }
      continue;
    }
    for (int run = 0; run < runs; ++run) {
      float* from = acc + run * pitch;
      if (slot.kind == ResolvedSlot::kRelu)
        each(from, count, [&](V x, int64_t) HWY_ATTR { return at_least(low, x); });
      else if (slot.kind == ResolvedSlot::kClamp)
        each(from, count, [&](V x, int64_t) HWY_ATTR { return at_most(high, at_least(low, x)); });
      else if (slot.kind == ResolvedSlot::kMap)
        map_row(*slot.map, from, count);
      else
        slot.function(from, count, slot.alpha, slot.beta);
    }
  }
  for (int m = 0; m < rows; ++m) {
    const float* row = acc + m * pitch;
    for (int64_t i = 0; i < num_columns; i += kLanes)
      if (t.bf16_output)
        store_bf16(load(row + i), t.out[m], column + i, num_columns - i);
      else
        store_any(load(row + i), t.out[m], t.half_output, column + i, num_columns - i);
  }
}

// Without masks, each vector of a tile would have code for a partial vector and, without instructions for fp16, for the
// conversion too. finish() leaves such tiles to finish_in_memory(), which all tiles share.
template <int kVectors>
HWY_INLINE bool stays_in_registers(const Tile& t, int64_t column) {
  if (kHasMasks) return true;
  const int64_t left = t.num_columns - column;
  const bool whole_vectors = left >= kVectors * kLanes || left % kLanes == 0;
  return whole_vectors && (hexane::HWY_NAMESPACE::kHasHalf || !t.half_output);
}

// Returns the number of columns of vector v in a tile with `left` columns. Only the last panel may have less than
// kLanes, or none. Without masks, a vector has kLanes or none.
template <int kVectors>
HWY_INLINE int64_t vector_columns(int v, int64_t left) {
  if (v < kVectors - kPanelVectors) return kLanes;
  if (kHasMasks) return left - v * kLanes;
  return v * kLanes < left ? kLanes : 0;
}

template <int kRows, int kVectors, class T>
HWY_INLINE void add_extra(const Tile& t, const std::byte* const* extra, int64_t column, V (&acc)[kRows][kVectors]) {
  const int64_t left = t.num_columns - column;
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
    const T* from = reinterpret_cast<const T*>(extra[m]) + column;
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const int64_t n = vector_columns<kVectors>(v, left);
      if constexpr (kHasMasks)
        acc[m][v] = hn::Add(acc[m][v], load_n(from + v * kLanes, n));
      else if (n > 0)
        acc[m][v] = hn::Add(acc[m][v], load(from + v * kLanes));
    }
  }
}

template <int kRows, int kVectors>
HWY_INLINE void store_bf16_tile(const Tile& t, int64_t column, V (&acc)[kRows][kVectors]) {
  const int64_t left = t.num_columns - column;
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const int64_t n = vector_columns<kVectors>(v, left);
      if (kHasMasks || n > 0) store_bf16(acc[m][v], t.out[m], column + v * kLanes, kHasMasks ? n : kLanes);
    }
}

template <int kRows, int kVectors, class T>
HWY_INLINE void store_tile(const Tile& t, int64_t column, V (&acc)[kRows][kVectors]) {
  const int64_t left = t.num_columns - column;
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
    T* to = reinterpret_cast<T*>(t.out[m]) + column;
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const int64_t n = vector_columns<kVectors>(v, left);
      if (kHasMasks || n > 0) store_n(acc[m][v], to + v * kLanes, kHasMasks ? n : kLanes);
    }
  }
}

// Like finish_in_memory(), for accumulators in registers. The accumulators stay in registers unless a slot is a
// function, the output is bf16 without kBf16, or stays_in_registers() is false.
template <int kRows, int kVectors, bool kBf16 = false>
HWY_INLINE void finish(const Tile& t, int64_t column, V (&acc)[kRows][kVectors]) {
  const D d;
  const ResolvedEpilogue& e = *t.epilogue;
  if (!e.in_registers || (!kBf16 && t.bf16_output) || !stays_in_registers<kVectors>(t, column)) {
    HWY_ALIGN float memory[kRows][kVectors * kLanes];
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) hn::Store(acc[m][v], d, memory[m] + v * kLanes);
    return finish_in_memory(t, column, kRows, kVectors * kLanes, memory[0], kVectors * kLanes);
  }
  if (t.bias) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const V bias = load(t.bias + column + v * kLanes);
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m) acc[m][v] = hn::Add(acc[m][v], bias);
    }
  }
  for (int i = 0; i < e.count; ++i) {
    const ResolvedSlot& slot = e.slots[i];
    if (slot.kind == ResolvedSlot::kAdd) {
      if (hexane::HWY_NAMESPACE::kHasHalf && t.half_output)
        add_extra<kRows, kVectors, hwy::float16_t>(t, t.extra[slot.extra], column, acc);
      else
        add_extra<kRows, kVectors, float>(t, t.extra[slot.extra], column, acc);
      continue;
    }
    const V low = hn::Set(d, slot.alpha), high = hn::Set(d, slot.beta);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) acc[m][v] = at_least(low, acc[m][v]);
    if (slot.kind == ResolvedSlot::kClamp) {
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) acc[m][v] = at_most(high, acc[m][v]);
    }
  }
  if (kBf16 && t.bf16_output)
    store_bf16_tile<kRows, kVectors>(t, column, acc);
  else if (hexane::HWY_NAMESPACE::kHasHalf && t.half_output)
    store_tile<kRows, kVectors, hwy::float16_t>(t, column, acc);
  else
    store_tile<kRows, kVectors, float>(t, column, acc);
}

template <int kRows, int kVectors>
HWY_NOINLINE void finish_stored(const Tile& t, int64_t column, const float* sums) {
  V acc[kRows][kVectors];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) acc[m][v] = hn::Load(D(), sums + (m * kVectors + v) * kLanes);
  finish<kRows, kVectors>(t, column, acc);
}

// Like finish(), but stores the accumulators and calls finish_in_memory(), so that products of all shapes share its
// code. Pays for sums long enough to hide the cost of the stores.
template <int kRows, int kVectors>
HWY_INLINE void finish_through_memory(const Tile& t, int64_t column, const V (&acc)[kRows][kVectors]) {
  HWY_ALIGN float sums[kRows][kVectors * kLanes];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) hn::Store(acc[m][v], D(), sums[m] + v * kLanes);
  finish_stored<kRows, kVectors>(t, column, sums[0]);
}

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
