// Multiplies by sparse weights and decodes them, for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/matmul/sparse.cpp"
#include "cpu/matmul/sparse.h"

#include <hwy/foreach_target.h>
// after foreach_target
#include <array>
#include <bit>
#include <cstring>

#include "core/instruction_sets.h"
#include "cpu/operand.h"
#include "cpu/simd/epilogue-inl.h"
#include "cpu/sums.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

constexpr int kGroupPanels = static_cast<int>(kMaskColumns / kPanelLanes);
constexpr int64_t kAhead = 512;  // distance of prefetching, in numbers

// For each mask of a vector: the index of the number that goes to each lane, or with 4 lanes the indices of its four
// bytes. -1: no number, the lane is 0.
constexpr int kParts = kLanes == 4 ? 4 : 1;
constexpr int kNumPlaces = kLanes <= 8 ? 1 << kLanes : 1;
using Places = std::array<std::array<int8_t, kLanes * kParts>, kNumPlaces>;
constexpr Places places() {
  Places found{};
  for (int bits = 0; bits < kNumPlaces; ++bits)
    for (int lane = 0, next = 0; lane < kLanes; ++lane) {
      const bool taken = bits >> lane & 1;
      for (int part = 0; part < kParts; ++part)
        found[bits][lane * kParts + part] = static_cast<int8_t>(taken ? next * kParts + part : -1);
      next += taken;
    }
  return found;
}
constexpr Places kPlaces = places();

HWY_INLINE int count(uint64_t bits) { return __builtin_popcountll(bits); }

// Spreads consecutive numbers to the lanes with set bits; other lanes are 0.
HWY_INLINE V spread(uint32_t bits, const float* from) {
  const D d;
#if HEXANE_HAS_AVX512
  (void)d;
  return V{_mm512_maskz_expand_ps(static_cast<__mmask16>(bits), load(from).raw)};
#else
  static_assert(kLanes <= 8);
  if constexpr (kLanes == 4) {
    const hn::Repartition<int8_t, D> bytes;
    const auto place = hn::LoadU(bytes, kPlaces[bits].data());
    return hn::BitCast(d, hn::TableLookupBytesOr0(hn::BitCast(bytes, load(from)), place));
  } else {
    const hn::Rebind<int32_t, D> di;
    const auto place = hn::PromoteTo(di, hn::LoadU(hn::Rebind<int8_t, D>(), kPlaces[bits].data()));
    const V found = hn::TableLookupLanes(load(from), hn::IndicesFromVec(d, hn::And(place, hn::Set(di, kLanes - 1))));
    return hn::IfThenZeroElse(hn::RebindMask(d, hn::Lt(place, hn::Zero(di))), found);
  }
#endif
}

// Reads the numbers of kPanels panels of one group, term by term.
template <int kPanels>
class Numbers {
 public:
  static constexpr int kVectors = kPanels * kPanelVectors;

  HWY_INLINE Numbers(const SparsePanels& s, int64_t panel)
      : mask_(s.masks + panel / kGroupPanels * s.k * 8),
        from_(s.numbers + s.first[panel / kGroupPanels]),
        shift_(static_cast<int>(panel % kGroupPanels * kPanelLanes)) {}

  // Reads the next term.
  HWY_INLINE void read(V (&numbers)[kVectors]) {
    uint64_t mask;
    std::memcpy(&mask, mask_, sizeof mask);
    mask_ += sizeof mask;
    const float* at = from_;
    __builtin_prefetch(at + kAhead);
    from_ += count(mask);
    if constexpr (kPanels < kGroupPanels) {
      at += count(mask & ((uint64_t{1} << shift_) - 1));
      mask >>= shift_;
    }
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const auto bits = static_cast<uint32_t>(mask >> (v * kLanes)) & ((1u << kLanes) - 1);
      numbers[v] = spread(bits, at);
      at += count(bits);
    }
  }

 private:
  const std::byte* mask_;
  const float* from_;
  int shift_;
};

// Computes the sums of kRows rows. Terms are added in the order of tile() in gemm.cpp.
template <int kRows, int kPanels>
void add_rows(const Tile& t, const SparsePanels& s, int64_t panel) {
  constexpr int kVectors = kPanels * kPanelVectors;
  const D d;
  V acc[kRows][kVectors], numbers[kVectors];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) acc[m][v] = hn::Zero(d);
  const bool is_long = s.k > kShortSum;
  const int64_t block = is_long ? sum_block(s.k) : s.k;
  Totals<kRows, kVectors> totals;
  Numbers<kPanels> read(s, panel);
  int64_t room = block;
  for (int64_t segment = 0; segment < t.num_segments; ++segment) {
    const float* a[kRows];
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) a[m] = t.a[segment * kTileRows + m];
    for (int64_t l = 0; l < t.length;) {
      if (room == 0) {
        totals.add(acc);
        room = block;
      }
      const int64_t end = HWY_MIN(t.length, l + room);
      room -= end - l;
      for (; l < end; ++l) {
        read.read(numbers);
#pragma GCC unroll 16
        for (int m = 0; m < kRows; ++m) {
          const V left = hn::Set(d, a[m][l]);
#pragma GCC unroll 16
          for (int v = 0; v < kVectors; ++v) acc[m][v] = hn::MulAdd(left, numbers[v], acc[m][v]);
        }
      }
    }
  }
  if (is_long) totals.add_to(acc);
  finish<kRows, kVectors>(t, panel * kPanelLanes, acc);
}

template <int kRows>
void rows_of(const Tile& t, const SparsePanels& s, Range columns) {
  // The number of panels at once, limited so that registers hold the sums.
  constexpr int kSums = kPanelVectors == 1 ? 24 : 12, kFit = kSums / (kRows * kPanelVectors);
  constexpr int kPair = kFit >= 2 ? 2 : 1, kAtOnce = kFit >= 4 ? 4 : kPair;
  const int64_t end = ceil_div(columns.end, kPanelLanes);
  int64_t panel = columns.begin / kPanelLanes;
  const auto some = [&](auto panels) {
    constexpr int kPanels = decltype(panels)::value;
    if (panel % kPanels != 0 || panel + kPanels > end) return false;
    add_rows<kRows, kPanels>(t, s, panel);
    panel += kPanels;
    return true;
  };
  while (panel < end)
    some(std::integral_constant<int, kAtOnce>()) || some(std::integral_constant<int, kPair>()) ||
        some(std::integral_constant<int, 1>());
}

void rows(const Tile& t, const SparsePanels& s, Range columns) {
  switch (t.rows) {
    case 1:
      return rows_of<1>(t, s, columns);
    case 2:
      return rows_of<2>(t, s, columns);
    case 3:
      return rows_of<3>(t, s, columns);
    case 4:
      return rows_of<4>(t, s, columns);
    case 5:
      return rows_of<5>(t, s, columns);
    default:
      return rows_of<6>(t, s, columns);
  }
}

template <int kPanels>
void decode_panels(const SparsePanels& s, int64_t panel, float* to) {
  constexpr int kVectors = kPanels * kPanelVectors;
  Numbers<kPanels> read(s, panel);
  V numbers[kVectors];
  for (int64_t k = 0; k < s.k; ++k, to += kPanelLanes) {
    read.read(numbers);
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v)
      hn::StoreU(numbers[v], D(), to + v / kPanelVectors * s.k * kPanelLanes + v % kPanelVectors * kLanes);
  }
}

void decode(const SparsePanels& s, Range columns, float* to) {
  const int64_t end = ceil_div(columns.end, kPanelLanes);
  int64_t panel = columns.begin / kPanelLanes;
  const auto some = [&](auto panels) {
    constexpr int kPanels = decltype(panels)::value;
    if (panel % kPanels != 0 || panel + kPanels > end) return false;
    decode_panels<kPanels>(s, panel, to);
    panel += kPanels;
    to += kPanels * s.k * kPanelLanes;
    return true;
  };
  while (panel < end)
    some(std::integral_constant<int, 4>()) || some(std::integral_constant<int, 2>()) ||
        some(std::integral_constant<int, 1>());
}

}  // namespace

const SparseOps kSparseOps = {HEXANE_HAS_AVX512 ? 96 : 12, rows, decode};
const SparseOps* sparse_ops_of_target() { return &kSparseOps; }

}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(sparse_ops_of_target);

const SparseOps& sparse_ops() {
  static const SparseOps& ops = *HWY_DYNAMIC_DISPATCH(sparse_ops_of_target)();
  return ops;
}

SparseShape sparse_shape(const char* kernel, const Tensor& x, const Tensor& masks, const Tensor& numbers,
                         int64_t columns, bool transpose_x) {
  if (x.rank < 2 || masks.rank != 3 || numbers.rank != 1)
    fail(kernel, "ranks: got ", x.rank, ", ", masks.rank, " and ", numbers.rank, ", need at least 2, 3 and 1");
  if (columns < 0) fail(kernel, "columns: got ", columns, ", need 0 or more");
  check_operand(kernel, "x", x);
  check_dense(kernel, "masks", masks);
  check_dense(kernel, "numbers", numbers);
  const SparseShape s = {x.shape[x.rank - (transpose_x ? 2 : 1)], columns};
  checked_product(kernel, {columns, 1});
  const int64_t groups = std::max<int64_t>(s.num_groups(), 1);
  checked_product(kernel, {std::max<int64_t>(s.k, 1), groups, kMaskColumns, 4});
  if (masks.shape[0] != s.num_groups() || masks.shape[1] != s.k || masks.shape[2] * 8 != kMaskColumns)
    fail(kernel, "masks: got ", shape_text(masks), ", need (", s.num_groups(), ", ", s.k, ", 8) for ", columns,
         " columns");
  return s;
}

void find_groups(const char* kernel, const SparseShape& s, const Tensor& masks, const Tensor& numbers, int64_t* first) {
  const std::byte* from = masks.data;
  const int64_t in_last = s.columns % kMaskColumns;
  int64_t total = 0;
  uint64_t last = 0;
  for (int64_t group = 0; group < s.num_groups(); ++group) {
    first[group] = total;
    last = 0;
    for (int64_t k = 0; k < s.k; ++k, from += sizeof(uint64_t)) {
      uint64_t mask;
      std::memcpy(&mask, from, sizeof mask);
      last |= mask;
      total += std::popcount(mask);
    }
  }
  if (in_last != 0 && last >> in_last != 0)
    fail(kernel, "masks: got a bit of a column after the last one, need 0 from bit ", in_last, " of the last group on");
  if (numbers.shape[0] != total + kSparseEnd)
    fail(kernel, "numbers: got ", numbers.shape[0], ", need ", total + kSparseEnd,
         ", one for each bit of the masks and ", kSparseEnd, " more");
}

}  // namespace hexane::cpu
#endif
