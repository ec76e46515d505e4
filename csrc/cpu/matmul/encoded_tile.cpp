// Multiplies by encoded weights decoded in registers, and decodes weights to memory, for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/matmul/encoded_tile.cpp"
#include "cpu/matmul/encoded.h"

#include <hwy/foreach_target.h>
// after foreach_target
#include "core/instruction_sets.h"
#include "cpu/matmul/encoded_numbers-inl.h"
#include "cpu/simd/epilogue-inl.h"
#include "cpu/sums.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

// Panels for which one row of the output is computed at once: enough sums to hide the latency of an addition.
constexpr int kRowPanels = kPanelVectors <= 2 ? 4 : 2;
constexpr int kRowPanelsOfIntegers = kPanelVectors == 1 ? 2 * kRowPanels : kRowPanels;

// Rounds to fp16 and back to fp32. No number may overflow fp16.
HWY_INLINE V rounded_to_half(V value) {
  const D d;
  if constexpr (hexane::HWY_NAMESPACE::kHasHalf) {
    return hn::PromoteTo(d, hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), value));
  } else {
    const hn::RebindToUnsigned<D> du;
    const auto magnitude = hn::Abs(value);
    const auto bits = hn::BitCast(du, magnitude);
    const auto odd = hn::And(hn::ShiftRight<13>(bits), hn::Set(du, 1u));
    const auto up = hn::Add(bits, hn::Add(odd, hn::Set(du, 0xfffu)));
    const auto normal = hn::BitCast(d, hn::And(up, hn::Set(du, ~0x1fffu)));
    // In fp32, the last bit of a number from 0.5 to 1 is worth 2^-24, the unit of fp16's subnormal numbers.
    const auto tiny = hn::Sub(hn::Add(magnitude, hn::Set(d, 0.5f)), hn::Set(d, 0.5f));
    return hn::CopySign(hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0x1p-14f)), tiny, normal), value);
  }
}

template <int kCount>
HWY_INLINE void round_to_halves(V (&numbers)[kCount]) {
#pragma GCC unroll 16
  for (int v = 0; v < kCount; ++v) numbers[v] = rounded_to_half(numbers[v]);
}

// Calls use(k, numbers of kPanels panels) for each term in [begin, end). The terms in the range have to share one scale
// per column.
template <int kPanels, Code kCode, bool kHalves, bool kFetches, class Use>
HWY_INLINE void each_term(const EncodedPanels& e, int64_t panel, int64_t begin, int64_t end, const Use& use) {
  using Read = Numbers<kPanels, kCode>;
  Read read(e, panel, begin);
  V numbers[Read::kVectors];
  int64_t k = begin;
  if constexpr (Read::kPairs) {
    for (; k + 1 < end; k += 2) {
      if constexpr (kFetches) read.fetch_next_panels();
      read.read(numbers);
      if constexpr (kHalves) round_to_halves(numbers);
      use(k, numbers);
      read.read_other(numbers);
      if constexpr (kHalves) round_to_halves(numbers);
      use(k + 1, numbers);
    }
  }
  for (; k < end; ++k) {
    if constexpr (kFetches) read.fetch_next_panels();
    read.read(numbers);
    if constexpr (kHalves) round_to_halves(numbers);
    use(k, numbers);
  }
}

// Computes one row of sums. Terms are added in the order of tile() in gemm.cpp.
template <int kPanels, Code kCode, bool kHalves>
void add_row(const Tile& t, const EncodedPanels& e, int64_t panel) {
  constexpr int kVectors = kPanels * kPanelVectors;
  const D d;
  V acc[1][kVectors];
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) acc[0][v] = hn::Zero(d);
  const float* x = t.a[0];
  const bool is_long = e.k > kShortSum;
  const int64_t sum = is_long ? sum_block(e.k) : e.k;
  Totals<1, kVectors> totals;
  int64_t room = sum;
  for (int64_t k = 0; k < e.k;) {
    if (room == 0) {
      totals.add(acc);
      room = sum;
    }
    const int64_t end = HWY_MIN(k + room, HWY_MIN(e.k, (k / e.block + 1) * e.block));
    each_term<kPanels, kCode, kHalves, true>(e, panel, k, end, [&](int64_t i, const V(&numbers)[kVectors]) HWY_ATTR {
      const V left = hn::Set(d, x[i]);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) acc[0][v] = hn::MulAdd(left, numbers[v], acc[0][v]);
    });
    room -= end - k;
    k = end;
  }
  if (is_long) totals.add_to(acc);
  finish_through_memory<1, kVectors>(t, panel * kPanelLanes, acc);
}

template <Code kCode, bool kHalves>
void row_of(const Tile& t, const EncodedPanels& e, Range columns) {
  const int64_t end = ceil_div(columns.end, kPanelLanes);
  int64_t panel = columns.begin / kPanelLanes;
  // With half bytes the scales also occupy registers.
  constexpr bool kIntegers = kCode == Code::kBytes || kCode == Code::kHalfBytes;
  constexpr int kAtOnce = kCode == Code::kHalfBytes && kLanes <= 8 ? 2 : kIntegers ? kRowPanelsOfIntegers : kRowPanels;
  for (; panel + kAtOnce <= end; panel += kAtOnce) add_row<kAtOnce, kCode, kHalves>(t, e, panel);
  if constexpr (kAtOnce > kRowPanels)
    for (; panel + kRowPanels <= end; panel += kRowPanels) add_row<kRowPanels, kCode, kHalves>(t, e, panel);
  for (; panel < end; ++panel) add_row<1, kCode, kHalves>(t, e, panel);
}

template <Code kCode, bool kHalves>
void decode_of(const EncodedPanels& e, Range columns, float* to) {
  const int64_t last = ceil_div(columns.end, kPanelLanes);
  for (int64_t panel = columns.begin / kPanelLanes; panel < last; ++panel, to += e.k * kPanelLanes)
    for (int64_t k = 0; k < e.k; k += e.block)
      each_term<1, kCode, kHalves, false>(e, panel, k, k + e.block,
                                          [&](int64_t i, const V(&numbers)[kPanelVectors]) HWY_ATTR {
#pragma GCC unroll 16
                                            for (int v = 0; v < kPanelVectors; ++v)
                                              hn::StoreU(numbers[v], D(), to + i * kPanelLanes + v * kLanes);
                                          });
}

template <Code kCode, bool kHalves = false>
struct Reader {
  static void row(const Tile& t, const EncodedPanels& e, Range columns) { row_of<kCode, kHalves>(t, e, columns); }
  static void decode(const EncodedPanels& e, Range columns, float* to) { decode_of<kCode, kHalves>(e, columns, to); }
};

// Calls f with the Reader of the weight's code. Table entries need no rounding, because packing has rounded them.
template <class F>
void with_reader(const EncodedPanels& e, const F& f) {
  if (!e.palette && e.four_bits) return e.halves ? f(Reader<Code::kHalfBytes, true>()) : f(Reader<Code::kHalfBytes>());
  if (!e.palette) return e.halves ? f(Reader<Code::kBytes, true>()) : f(Reader<Code::kBytes>());
  if (e.vector == 2) return e.four_bits ? f(Reader<Code::kPairTables>()) : f(Reader<Code::kWidePairTables>());
  if (e.vector == 4) return e.four_bits ? f(Reader<Code::kQuadTables>()) : f(Reader<Code::kWideQuadTables>());
  const bool one_table = e.table_columns % kPanelLanes == 0, held = one_table && halves_hold(e);
  if (e.entries == kWideTableEntries)
    return HEXANE_HAS_AVX512 && held ? f(Reader<Code::kWideHalfTables>()) : f(Reader<Code::kWideTables>());
  const bool halves = kLanes < 16 && hexane::HWY_NAMESPACE::kHasHalf && held;
  if (!e.four_bits) return halves ? f(Reader<Code::kLongHalfTables>()) : f(Reader<Code::kLongTables>());
  if (!one_table) return f(Reader<Code::kRunsOfTables>());
  return halves ? f(Reader<Code::kHalfTables>()) : f(Reader<Code::kTables>());
}

void row(const Tile& t, const EncodedPanels& e, Range columns) {
  with_reader(e, [&](auto reader) { reader.row(t, e, columns); });
}

void decode(const EncodedPanels& e, Range columns, float* to) {
  with_reader(e, [&](auto reader) { reader.decode(e, columns, to); });
}

void integers(const uint8_t* codes, int64_t n, bool four_bits, float scale, float* to) {
  const hn::Rebind<int8_t, D> bytes;
  const VI flip = hn::Set(DI(), four_bits ? 8 : 0);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VI code = hn::PromoteTo(DI(), hn::LoadU(bytes, reinterpret_cast<const int8_t*>(codes + i)));
    const VI number = hn::Sub(hn::Xor(code, flip), flip);
    hn::StoreU(hn::Mul(hn::ConvertTo(D(), number), hn::Set(D(), scale)), D(), to + i);
  }
  const int flipped = four_bits ? 8 : 0;
  for (; i < n; ++i) to[i] = static_cast<float>((static_cast<int8_t>(codes[i]) ^ flipped) - flipped) * scale;
}

}  // namespace

const EncodedOps kEncodedOps = {row, decode, integers};
const EncodedOps* encoded_ops_of_target() { return &kEncodedOps; }

}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(encoded_ops_of_target);

const EncodedOps& encoded_ops() {
  static const EncodedOps& ops = *HWY_DYNAMIC_DISPATCH(encoded_ops_of_target)();
  return ops;
}

}  // namespace hexane::cpu
#endif
