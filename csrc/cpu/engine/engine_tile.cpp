// Tiles of matrix multiply and convolution in the engine's arithmetic. Each part of a tile uses the fastest way of
// addition that the bounds of its operands allow (bounds-inl.h).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/engine/engine_tile.cpp"
#include "cpu/engine/engine_tile.h"

#include <algorithm>

#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/engine/bounds-inl.h"
#include "cpu/engine/number-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

constexpr int kRowsAtOnce = 3;

void to_numbers(const std::byte* from, DType, int64_t n, float* to) {
  const D d;
  const hn::Rebind<uint16_t, D> dh;
  const auto* p = reinterpret_cast<const uint16_t*>(from);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(number_of(d, hn::LoadU(dh, p + i)), d, to + i);
  if (i < n) {
    uint16_t halves[kLanes] = {};
    std::memcpy(halves, p + i, (n - i) * sizeof(uint16_t));
    float padded[kLanes];
    hn::StoreU(number_of(d, hn::LoadU(dh, halves)), d, padded);
    std::memcpy(to + i, padded, (n - i) * sizeof(float));
  }
}

template <class Way, int kRows, int kVectors>
HWY_INLINE void add_products(const Tile& t, int first_row, int first_panel, V (*results)[kVectors]) {
  typename Way::Sum sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) {
    const int64_t column = t.column + first_panel * kPanelLanes + v * kLanes;
    const auto first = Way::start(t.bias ? t.bias + column : nullptr, t.num_segments * t.length);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) sum[m][v] = first;
  }
  const float* b = reinterpret_cast<const float*>(t.panels + first_panel * t.panel_bytes);
  const int64_t panel_items = t.panel_bytes / static_cast<int64_t>(sizeof(float));
  for (int64_t s = 0; s < t.num_segments; ++s) {
    const float* a[kRows];
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) a[m] = t.a[s * kTileRows + first_row + m];
    for (int64_t l = 0; l < t.length; ++l, b += kPanelLanes) {
      typename Way::Weight weights[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v)
        weights[v] = Way::weight(load(b + v / kPanelVectors * panel_items + v % kPanelVectors * kLanes));
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m) {
        const auto x = Way::input(hn::Set(D(), a[m][l]));
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) Way::add(sum[m][v], x, weights[v]);
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) results[m][v] = Way::result(sum[m][v]);
}

template <int kRows, int kPanels>
void tile_part(const Tile& t, const Bound* bounds, const ColumnBound& columns, int first_row, int first_panel) {
  constexpr int kVectors = kPanels * kPanelVectors;
  V results[kRows][kVectors];
  Bound bound{};
  for (int m = 0; m < kRows; ++m)
    bound = {std::max(bound.largest, bounds[first_row + m].largest), std::max(bound.norm, bounds[first_row + m].norm)};
  switch (tile_way(t, bound, columns)) {
    case Way::kSmall:
      add_products<SmallProducts, kRows, kVectors>(t, first_row, first_panel, results);
      break;
    case Way::kBounded:
      add_products<BoundedSums, kRows, kVectors>(t, first_row, first_panel, results);
      break;
    case Way::kAny:
      for (int m = 0; m < kRows; ++m)
        add_products<AnyProducts, 1, kVectors>(t, first_row + m, first_panel, results + m);
  }
  Tile rest = t;
  rest.bias = nullptr;
  for (int m = 0; m < kRows; ++m) {
    rest.out[m] = t.out[first_row + m];
    for (int e = 0; e < t.epilogue->num_extra; ++e) rest.extra[e][m] = t.extra[e][first_row + m];
  }
  finish<kRows, kVectors>(rest, t.column + first_panel * kPanelLanes, results);
}

template <int kPanels>
void tile_panels(const Tile& t, const Bound* bounds, const ColumnBound& columns, int first_panel) {
  int m = 0;
  for (; m + kRowsAtOnce <= t.rows; m += kRowsAtOnce)
    tile_part<kRowsAtOnce, kPanels>(t, bounds, columns, m, first_panel);
  if (t.rows - m == 2) return tile_part<2, kPanels>(t, bounds, columns, m, first_panel);
  if (t.rows - m == 1) return tile_part<1, kPanels>(t, bounds, columns, m, first_panel);
}

void tile(const Tile& t) {
  Bound bounds[kTileRows];
  for (int m = 0; m < t.rows; ++m) bounds[m] = row_bound(t, m);
  const ColumnBound columns = column_bound(t);
  if constexpr (kPanelsAtOnce == 1) {
    for (int p = 0; p < t.num_panels; ++p) tile_panels<1>(t, bounds, columns, p);
  } else {
    switch (t.num_panels) {
      case 1:
        return tile_panels<1>(t, bounds, columns, 0);
      case 2:
        return tile_panels<2>(t, bounds, columns, 0);
      case 3:
        return tile_panels<3>(t, bounds, columns, 0);
      default:
        return tile_panels<4>(t, bounds, columns, 0);
    }
  }
}

}  // namespace

const Arithmetic kEngineArithmetic = {
    .to_floats = to_numbers,
    .tile = tile,
    .end_panel = end_panel,
    .end_bytes = sizeof(PanelEnd),
};
const Arithmetic* arithmetic_of_target() { return &kEngineArithmetic; }

}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(arithmetic_of_target);

const Arithmetic& engine_arithmetic() {
  static const Arithmetic& arithmetic = *HWY_DYNAMIC_DISPATCH(arithmetic_of_target)();
  return arithmetic;
}

}  // namespace hexane::cpu
#endif
