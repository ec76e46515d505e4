// Decodes integers and indices of tables in registers. Included once per Highway target, inside foreach_target.
#if defined(HEXANE_CPU_ENCODED_NUMBERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEXANE_CPU_ENCODED_NUMBERS_INL_H_
#undef HEXANE_CPU_ENCODED_NUMBERS_INL_H_
#else
#define HEXANE_CPU_ENCODED_NUMBERS_INL_H_
#endif

#include <cstring>
#include <type_traits>

#include "core/instruction_sets.h"
#include "cpu/matmul/encoded.h"
#include "cpu/simd/epilogue-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

using DI = hn::Rebind<int32_t, D>;
using VI = hn::Vec<DI>;

constexpr int kTableRuns = static_cast<int>(kPanelLanes / kTableColumns);  // Column runs of a panel, one table each.
constexpr int kTableParts = 16 / kLanes;                                   // Vectors that hold a table of 16 floats.

// How a panel is stored. kTables: all its columns share one table. kRunsOfTables: they may have several. kHalfTables:
// fp16 holds the table's entries, so it is stored as two tables of bytes. Long and wide tables have indices of eight
// bits. With pairs or quads a panel has one table, and a half or a quarter as many codes.
enum class Code {
  kBytes,
  kHalfBytes,
  kTables,
  kHalfTables,
  kRunsOfTables,
  kLongTables,
  kLongHalfTables,
  kWideTables,
  kWideHalfTables,
  kPairTables,
  kWidePairTables,
  kQuadTables,
  kWideQuadTables
};
constexpr int vector_of(Code code) { return code < Code::kPairTables ? 1 : code < Code::kQuadTables ? 2 : 4; }

// A table of 16 floats, held in registers.
struct Table {
  V parts[kTableParts];

  HWY_INLINE explicit Table(const float* from) {
#pragma GCC unroll 4
    for (int i = 0; i < kTableParts; ++i) parts[i] = load(from + i * kLanes);
  }
  // Returns the entries at the indices in the lower four bits of each lane.
  HWY_INLINE V operator[](VI index) const {
    const D d;
    // The instruction for one vector ignores the other bits, but Highway's debug build asserts that they are 0.
    if (kTableParts > 1 || HWY_IS_DEBUG_BUILD) index = hn::And(index, hn::Set(DI(), 15));
    const VI place = kTableParts == 1 ? index : hn::And(index, hn::Set(DI(), kLanes - 1));
    V found = hn::TableLookupLanes(parts[0], hn::IndicesFromVec(d, place));
#pragma GCC unroll 4
    for (int i = 1; i < kTableParts; ++i) {
      const auto beyond = hn::RebindMask(d, hn::Gt(index, hn::Set(DI(), i * kLanes - 1)));
      found = hn::IfThenElse(beyond, hn::TableLookupLanes(parts[i], hn::IndicesFromVec(d, place)), found);
    }
    return found;
  }
};

#if HEXANE_HAS_AVX512
// Looks up entries of a table of 64 floats, two vectors of the table at a time.
HWY_INLINE V long_table(const float* table, VI code) {
  const auto of = [&](const float* half)
                      HWY_ATTR { return V{_mm512_permutex2var_ps(load(half).raw, code.raw, load(half + kLanes).raw)}; };
  const auto upper = hn::RebindMask(D(), hn::TestBit(code, hn::Set(DI(), 2 * kLanes)));
  return hn::IfThenElse(upper, of(table + 2 * kLanes), of(table));
}

// Looks up two terms of 16 columns in a table of 256 halves, one quarter of the table after the other.
HWY_INLINE void wide_halves(const std::byte* from, const float* table, V& first, V& second) {
  const __m512i code = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  const auto* halves = reinterpret_cast<const uint16_t*>(table + kWideTableEntries);
  const auto quarter = [&](int i) HWY_ATTR {
    const __m512i low = _mm512_loadu_si512(halves + 64 * i), high = _mm512_loadu_si512(halves + 64 * i + 32);
    return _mm512_permutex2var_epi16(low, code, high);
  };
  const __mmask32 odd = _mm512_test_epi16_mask(code, _mm512_set1_epi16(64));
  const __mmask32 upper = _mm512_test_epi16_mask(code, _mm512_set1_epi16(128));
  const __m512i lower_half = _mm512_mask_blend_epi16(odd, quarter(0), quarter(1));
  const __m512i upper_half = _mm512_mask_blend_epi16(odd, quarter(2), quarter(3));
  const __m512i found = _mm512_mask_blend_epi16(upper, lower_half, upper_half);
  first = V{_mm512_cvtph_ps(_mm512_castsi512_si256(found))};
  second = V{_mm512_cvtph_ps(_mm512_extracti64x4_epi64(found, 1))};
}
#endif

// Converts the bits of 8 halves to floats, in one or two vectors.
template <class To, class Bits>
HWY_INLINE void promote(Bits bits, V* to) {
  const To d;
  const hn::Rebind<hwy::float16_t, To> halves;
  if constexpr (hn::MaxLanes(To()) == 8) {
    to[0] = hn::PromoteTo(d, hn::BitCast(halves, bits));
  } else {
    to[0] = hn::PromoteTo(d, hn::BitCast(halves, hn::LowerHalf(bits)));
    to[1] = hn::PromoteTo(d, hn::BitCast(halves, hn::UpperHalf(hn::Rebind<uint16_t, To>(), bits)));
  }
}

using Quad = hn::FixedTag<float, 4>;
using Pair = hn::FixedTag<uint64_t, 1>;

// Concatenates quad(first), quad(first + 1), .., of 4 floats each, to one vector.
template <class To, class F>
HWY_INLINE hn::Vec<To> of_quads(To d, int first, const F& quad) {
  if constexpr (hn::MaxLanes(To()) == 4) {
    return quad(first);
  } else {
    const hn::Half<To> half;
    return hn::Combine(d, of_quads(half, first + static_cast<int>(hn::MaxLanes(To())) / 8, quad),
                       of_quads(half, first, quad));
  }
}

// Reads the numbers of kPanels panels, one or two terms at a time. begin: the first term to read. Reading must stop at
// the end of the first term's block of scales.
template <int kPanels, Code kCode>
class Numbers {
 public:
  static constexpr int kVectors = kPanels * kPanelVectors;
  static constexpr int kVector = vector_of(kCode);
  static constexpr int64_t kCodes = kPanelLanes / kVector;  // codes of one term in a panel
  static constexpr bool kLong = kVector == 1 && kCode >= Code::kLongTables;
  static constexpr bool kFourBits =
      kVector == 1 ? kCode != Code::kBytes && !kLong : kCode == Code::kPairTables || kCode == Code::kQuadTables;
  static constexpr bool kSingle = kCode == Code::kWideTables || (kCode == Code::kLongTables && !HEXANE_HAS_AVX512);
  // With vectors of 4 floats a table fills four registers. The entries of this table are looked up byte by byte.
  static constexpr bool kPlanes = kLanes == 4 && (kCode == Code::kTables || kCode == Code::kRunsOfTables);
  static constexpr bool kPairs = kFourBits || kCode == Code::kLongHalfTables || kCode == Code::kWideHalfTables;

  HWY_INLINE Numbers(const EncodedPanels& e, int64_t panel, int64_t begin)
      : from_(e.panels + panel * e.panel_bytes + (kFourBits ? begin / 2 : begin) * kCodes),
        panel_bytes_(e.panel_bytes) {
    if constexpr (kCode == Code::kBytes || kCode == Code::kHalfBytes) {
      const float* row = e.numbers + (begin == 0 ? 0 : begin / e.block * e.pitch) + panel * kPanelLanes;
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        scales_[v] = load(row + v * kLanes);
        if constexpr (kCode == Code::kHalfBytes) shifts_[v] = hn::Mul(scales_[v], hn::Set(D(), -8.0f));
      }
    } else {
      for (int i = 0; i < kPanels * kTableRuns; ++i)
        tables_[i] = e.numbers + (panel * kPanelLanes + i * kTableColumns) / e.table_columns * e.pitch;
      if constexpr (kPlanes)
        for (int i = 0; i < kPanels * kTableRuns; ++i) take_apart(tables_[i], planes_[i]);
    }
  }

  // Fetches the codes of the panels that follow, at the same terms, into the second-level cache. Hardware fetches ahead
  // only within a page of memory.
  HWY_INLINE void fetch_next_panels() const {
    if (reinterpret_cast<uintptr_t>(from_) % 64 >= static_cast<uintptr_t>(kCodes)) return;  // once for each cache line
#pragma GCC unroll 8
    for (int p = kPanels; p < 2 * kPanels; ++p) __builtin_prefetch(from_ + p * panel_bytes_, 0, 2);
  }

  // Reads the next term, or the first of the next two terms.
  HWY_INLINE void read(V (&numbers)[kVectors]) {
    if constexpr (kVector > 1) {
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        Some some;
        std::memcpy(&some, from_ + p * panel_bytes_, sizeof some);
        some_[p] = some;
        look_up_vectors(p, kFourBits ? some_[p] & kLowerHalves : some_[p], numbers);
      }
    } else if constexpr (kCode == Code::kLongHalfTables) {
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) look_up_two(p);
      put(0, numbers);
      from_ += kPanelLanes;
    } else if constexpr (kCode == Code::kWideHalfTables) {
#if HEXANE_HAS_AVX512
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p)
        wide_halves(from_ + p * panel_bytes_, tables_[p * kTableRuns], numbers[p], second_[p]);
#endif
      from_ += kPanelLanes;
    } else if constexpr (kCode == Code::kHalfTables) {
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        bytes_[p] = hn::LoadU(Bytes(), reinterpret_cast<const uint8_t*>(from_ + p * panel_bytes_));
        look_up(p, hn::And(bytes_[p], hn::Set(Bytes(), 15)), numbers);
      }
    } else if constexpr (kPlanes) {
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        bytes_[p] = hn::LoadU(Bytes(), reinterpret_cast<const uint8_t*>(from_ + p * panel_bytes_));
        look_up_planes(p, hn::And(bytes_[p], hn::Set(Bytes(), 15)), numbers);
      }
    } else if constexpr (kSingle) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) numbers[v] = single_entries(v);
    } else {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        codes_[v] = load_codes(v);
        if constexpr (kCode == Code::kHalfBytes)
          numbers[v] = scaled(hn::And(codes_[v], hn::Set(DI(), 15)), v);
        else if constexpr (kCode == Code::kBytes)
          numbers[v] = hn::Mul(hn::ConvertTo(D(), codes_[v]), scales_[v]);
        else
          numbers[v] = entry(codes_[v], v);
      }
    }
    from_ += kCodes;
  }

  // Returns the second of the two terms.
  HWY_INLINE void read_other(V (&numbers)[kVectors]) const {
    if constexpr (kVector > 1) {
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) look_up_vectors(p, some_[p] >> 4 & kLowerHalves, numbers);
    } else if constexpr (kCode == Code::kLongHalfTables) {
      put(1, numbers);
    } else if constexpr (kCode == Code::kWideHalfTables) {
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) numbers[p] = second_[p];
    } else if constexpr (kCode == Code::kHalfTables) {
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) look_up(p, hn::ShiftRight<4>(bytes_[p]), numbers);
    } else if constexpr (kPlanes) {
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) look_up_planes(p, hn::ShiftRight<4>(bytes_[p]), numbers);
    } else if constexpr (kPairs) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        const VI code = hn::ShiftRight<4>(codes_[v]);
        numbers[v] = kCode == Code::kHalfBytes ? scaled(code, v) : entry(code, v);
      }
    }
  }

 private:
  using Bytes = hn::FixedTag<uint8_t, 16>;
  using Bits = hn::FixedTag<uint16_t, 8>;                    // Bits of 8 halves.
  using Two = hn::FixedTag<uint8_t, kLanes == 8 ? 32 : 16>;  // Codes of two terms, read in kSteps steps.
  static constexpr int kSteps = kLanes == 8 ? 1 : 2;

  HWY_INLINE VI load_codes(int v) const {
    const std::byte* at = from_ + v / kPanelVectors * panel_bytes_ + v % kPanelVectors * kLanes;
    if constexpr (kPairs || kLong)
      return hn::PromoteTo(DI(), hn::LoadU(hn::Rebind<uint8_t, D>(), reinterpret_cast<const uint8_t*>(at)));
    else
      return hn::PromoteTo(DI(), hn::LoadU(hn::Rebind<int8_t, D>(), reinterpret_cast<const int8_t*>(at)));
  }

  // Returns (code - 8) * scale, rounded once.
  HWY_INLINE V scaled(VI code, int v) const {
    if constexpr (HWY_NATIVE_FMA) return hn::MulAdd(hn::ConvertTo(D(), code), scales_[v], shifts_[v]);
    return hn::Mul(hn::ConvertTo(D(), hn::Sub(code, hn::Set(DI(), 8))), scales_[v]);
  }

  // Reads tables that do not fit into registers, one number at a time, because a gather instruction takes twice as
  // long.
  HWY_INLINE V single_entries(int v) const {
    const auto quad = [&](int i) HWY_ATTR {
      const int lane = v * kLanes + 4 * i;
      const float* table = tables_[lane / static_cast<int>(kTableColumns)];
      uint32_t some;
      std::memcpy(&some, from_ + v / kPanelVectors * panel_bytes_ + lane % static_cast<int>(kPanelLanes), sizeof some);
      const auto one = [&](int at)
                           HWY_ATTR { return hn::LoadU(hn::FixedTag<float, 1>(), table + (some >> (8 * at) & 0xFF)); };
      const hn::FixedTag<float, 2> two;
      return hn::Combine(Quad(), hn::Combine(two, one(3), one(2)), hn::Combine(two, one(1), one(0)));
    };
    return of_quads(hn::CappedTag<float, kLanes>(), 0, quad);
  }

  // Returns the entries for a vector of codes. The columns of the vector have at most two tables.
  HWY_INLINE V entry(VI code, int v) const {
    const int run = v * kLanes / static_cast<int>(kTableColumns), next = run + (kLanes > kTableColumns);
    const V found = in_table(tables_[run], code);
    if (kCode == Code::kTables || kLanes <= kTableColumns || (kLong && tables_[run] == tables_[next])) return found;
    const auto second = hn::Gt(hn::Iota(DI(), 0), hn::Set(DI(), static_cast<int>(kTableColumns) - 1));
    return hn::IfThenElse(hn::RebindMask(D(), second), in_table(tables_[next], code), found);
  }

  HWY_INLINE static V in_table(const float* table, VI code) {
#if HEXANE_HAS_AVX512
    if constexpr (kLong) return long_table(table, code);
#endif
    return Table(table)[code];
  }

  // Splits 16 floats into four planes: plane i has byte i of each float.
  static void take_apart(const float* table, uint8_t (&planes)[4][16]) {
    uint8_t bytes[16][4];
    std::memcpy(bytes, table, sizeof bytes);
    for (int entry = 0; entry < 16; ++entry)
      for (int i = 0; i < 4; ++i) planes[i][entry] = bytes[entry][i];
  }

  // Looks up all numbers of a panel in planes. The panel's first 8 columns may have another table than its last 8.
  HWY_INLINE void look_up_planes(int p, hn::Vec<Bytes> code, V (&numbers)[kVectors]) const {
    if constexpr (kPlanes) {
      const Bytes d;
      const hn::Repartition<uint16_t, Bytes> d16;
      const auto plane = [&](int i) HWY_ATTR {
        const auto of = [&](int run) HWY_ATTR {
          return hn::TableLookupBytes(hn::LoadU(d, planes_[p * kTableRuns + run][i]), code);
        };
        return kCode == Code::kTables ? of(0) : hn::ConcatUpperLower(d, of(kTableRuns - 1), of(0));
      };
      const auto a = plane(0), b = plane(1), c = plane(2), e = plane(3);
      const auto put = [&](int v, auto low, auto high) HWY_ATTR {
        numbers[p * kPanelVectors + v] = hn::BitCast(D(), hn::InterleaveLower(d16, low, high));
        numbers[p * kPanelVectors + v + 1] = hn::BitCast(D(), hn::InterleaveUpper(d16, low, high));
      };
      put(0, hn::BitCast(d16, hn::InterleaveLower(d, a, b)), hn::BitCast(d16, hn::InterleaveLower(d, c, e)));
      put(2, hn::BitCast(d16, hn::InterleaveUpper(d, a, b)), hn::BitCast(d16, hn::InterleaveUpper(d, c, e)));
    }
  }

  // Looks up two terms of a panel, 16 columns each, as low bytes and high bytes of halves.
  HWY_INLINE void look_up_two(int p) {
    if constexpr (kCode == Code::kLongHalfTables && kLanes <= 8) {
      const Two d;
      const auto* from = reinterpret_cast<const uint8_t*>(from_ + p * panel_bytes_);
      const auto* table = reinterpret_cast<const uint8_t*>(tables_[p * kTableRuns] + kLongTableEntries);
#pragma GCC unroll 2
      for (int i = 0; i < kSteps; ++i) {
        const auto code = hn::LoadU(d, from + i * kPanelLanes);
        const auto place = hn::And(code, hn::Set(d, 15));
        const auto odd = hn::TestBit(code, hn::Set(d, 16)), upper = hn::TestBit(code, hn::Set(d, 32));
        const auto found = [&](const uint8_t* bytes) HWY_ATTR {
          const auto of = [&](int part)
                              HWY_ATTR { return hn::TableLookupBytes(hn::LoadDup128(d, bytes + part * 16), place); };
          return hn::IfThenElse(upper, hn::IfThenElse(odd, of(3), of(2)), hn::IfThenElse(odd, of(1), of(0)));
        };
        low_[p][i] = found(table);
        high_[p][i] = found(table + kLongTableEntries);
      }
    }
  }

  // Converts term 0 or 1 of look_up_two() to floats.
  HWY_INLINE void put(int term, V (&numbers)[kVectors]) const {
    if constexpr (kCode == Code::kLongHalfTables && kLanes <= 8) {
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        const int i = kSteps == 1 ? 0 : term;
        const auto own = [&](auto both) HWY_ATTR {
          if constexpr (kSteps == 2)
            return both;
          else
            return term ? hn::UpperHalf(Bytes(), both) : hn::LowerHalf(Bytes(), both);
        };
        const auto first = hn::BitCast(Bits(), own(hn::InterleaveLower(Two(), low_[p][i], high_[p][i])));
        const auto second = hn::BitCast(Bits(), own(hn::InterleaveUpper(Two(), low_[p][i], high_[p][i])));
        promote<hn::CappedTag<float, kLanes>>(first, numbers + p * kPanelVectors);
        promote<hn::CappedTag<float, kLanes>>(second, numbers + p * kPanelVectors + kPanelVectors / 2);
      }
    }
  }

  // Looks up all numbers of a panel with tables of vectors. The bytes of `some` are its codes.
  HWY_INLINE void look_up_vectors(int p, uint64_t some, V (&numbers)[kVectors]) const {
    const float* table = tables_[p * kTableRuns];
#if HEXANE_HAS_AVX512
    if constexpr (kCode == Code::kPairTables) {
      // Each half of a 64-bit lane is the index of one number of an entry.
      const __m512i codes = _mm512_cvtepu8_epi64(_mm_cvtsi64_si128(static_cast<int64_t>(some)));
      const VI entry{_mm512_or_si512(_mm512_slli_epi64(codes, 33), _mm512_slli_epi64(codes, 1))};
      const VI place = hn::Or(entry, hn::And(hn::Iota(DI(), 0), hn::Set(DI(), 1)));
      numbers[p] = V{_mm512_permutex2var_ps(load(table).raw, place.raw, load(table + kLanes).raw)};
      return;
    }
#endif
    const auto quad = [&](int i) HWY_ATTR {
      const auto entry = [&](int at) HWY_ATTR { return table + (some >> (8 * at) & 0xFF) * kVector; };
      if constexpr (kVector == 4) return hn::LoadU(Quad(), entry(i));
      const auto pair = [&](int at)
                            HWY_ATTR { return hn::LoadU(Pair(), reinterpret_cast<const uint64_t*>(entry(at))); };
      return hn::BitCast(Quad(), hn::Combine(hn::FixedTag<uint64_t, 2>(), pair(2 * i + 1), pair(2 * i)));
    };
#pragma GCC unroll 4
    for (int v = 0; v < kPanelVectors; ++v)
      numbers[p * kPanelVectors + v] = of_quads(hn::CappedTag<float, kLanes>(), v * kLanes / 4, quad);
  }

  // Looks up all numbers of a panel.
  HWY_INLINE void look_up(int p, hn::Vec<Bytes> code, V (&numbers)[kVectors]) const {
    if constexpr (kCode == Code::kHalfTables && kLanes <= 8) {
      const auto* table = reinterpret_cast<const uint8_t*>(tables_[p * kTableRuns] + kTableEntries);
      const auto low = hn::TableLookupBytes(hn::LoadU(Bytes(), table), code);
      const auto high = hn::TableLookupBytes(hn::LoadU(Bytes(), table + kTableEntries), code);
      const auto first = hn::BitCast(Bits(), hn::InterleaveLower(Bytes(), low, high));
      const auto second = hn::BitCast(Bits(), hn::InterleaveUpper(Bytes(), low, high));
      promote<hn::CappedTag<float, kLanes>>(first, numbers + p * kPanelVectors);
      promote<hn::CappedTag<float, kLanes>>(second, numbers + p * kPanelVectors + kPanelVectors / 2);
    }
  }

  const std::byte* from_;
  int64_t panel_bytes_;
  V scales_[kVectors], shifts_[kVectors];
  const float* tables_[kPanels * kTableRuns];
  uint8_t planes_[kPlanes ? kPanels * kTableRuns : 1][4][16];
  VI codes_[kVectors];
  hn::Vec<Bytes> bytes_[kPanels];
  hn::Vec<Two> low_[kPanels][kSteps], high_[kPanels][kSteps];
  V second_[kPanels];  // numbers of the second of two terms
  static constexpr uint64_t kLowerHalves = 0x0F0F0F0F0F0F0F0F;
  using Some = std::conditional_t<kVector == 4, uint32_t, uint64_t>;
  Some some_[kPanels];  // codes of tables of vectors
};

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
