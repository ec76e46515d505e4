// Bounds on products and partial sums. If they prove that no accumulator reaches 32768, products are added in a faster
// way; if also no product reaches 64, in the fastest. A panel ends with its bounds: the largest weight, and the largest
// norm of a column. Included once per Highway target, inside foreach_target.
#if defined(HEXANE_CPU_ENGINE_BOUNDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEXANE_CPU_ENGINE_BOUNDS_INL_H_
#undef HEXANE_CPU_ENGINE_BOUNDS_INL_H_
#else
#define HEXANE_CPU_ENGINE_BOUNDS_INL_H_
#endif

#include "cpu/engine/fixed_point-inl.h"

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

struct Bound {
  float largest;  // The largest magnitude.
  float norm;     // The 2-norm of the row or column.
};

// The end of a panel in memory, after its k rows.
struct PanelEnd {
  Bound bound;
  float unused[14];
};
static_assert(sizeof(PanelEnd) == 4 * kPanelLanes);

inline void end_panel(std::byte* panel, int64_t k) {
  const D d;
  const hn::Half<D> half;
  const hn::Rebind<double, decltype(half)> wide;
  auto* weights = reinterpret_cast<float*>(panel);
  V largest = hn::Zero(d);
  hn::Vec<decltype(wide)> squares[2 * kPanelVectors];
  for (auto& square : squares) square = hn::Zero(wide);
  for (int64_t i = 0; i < k; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kPanelVectors; ++v, weights += kLanes) {
      const V x = load(weights);
      const auto low = hn::PromoteTo(wide, hn::LowerHalf(half, x)), high = hn::PromoteTo(wide, hn::UpperHalf(half, x));
      largest = hn::Max(largest, hn::Abs(x));
      squares[2 * v] = hn::MulAdd(low, low, squares[2 * v]);
      squares[2 * v + 1] = hn::MulAdd(high, high, squares[2 * v + 1]);
      hn::StoreU(packed(x), d, weights);
    }
  auto most = squares[0];
  for (const auto& square : squares) most = hn::Max(most, square);
  PanelEnd end{};
  end.bound = {hn::GetLane(hn::MaxOfLanes(d, largest)),
               static_cast<float>(std::sqrt(hn::GetLane(hn::MaxOfLanes(wide, most))))};
  std::memcpy(weights, &end, sizeof end);
}

HWY_INLINE Bound row_bound(const Tile& t, int row) {
  const D d;
  V largest = hn::Zero(d), squares = hn::Zero(d);
  for (int64_t s = 0; s < t.num_segments; ++s) {
    const float* a = t.a[s * kTileRows + row];
    for (int64_t l = 0; l < t.length; l += kLanes) {
      const V x = load_n(a + l, t.length - l);
      largest = hn::Max(largest, hn::Abs(x));
      squares = hn::MulAdd(x, x, squares);
    }
  }
  return {hn::GetLane(hn::MaxOfLanes(d, largest)), std::sqrt(hn::GetLane(hn::SumOfLanes(d, squares)))};
}

// Returns the fastest way of addition that gives exact sums. `largest` bounds each product, `sum` bounds every partial
// sum.
enum class Way { kSmall, kBounded, kAny };
inline Way way(float largest, float sum) {
  if (!(sum < 32760.0f)) return Way::kAny;
  return largest < 63.9f ? Way::kSmall : Way::kBounded;
}

// The bounds of the columns of a tile: its panels and its biases.
struct ColumnBound {
  Bound panels;
  float bias;
};

inline ColumnBound column_bound(const Tile& t) {
  ColumnBound bound{};
  for (int p = 0; p < t.num_panels; ++p) {
    PanelEnd end;
    std::memcpy(&end, t.panels + p * t.panel_bytes + t.num_segments * t.length * kPanelLanes * sizeof(float),
                sizeof end);
    bound.panels = {std::max(bound.panels.largest, end.bound.largest), std::max(bound.panels.norm, end.bound.norm)};
  }
  if (!t.bias) return bound;
  V bias = hn::Zero(D());
  for (int64_t i = 0; i < t.num_panels * kPanelLanes; i += kLanes)
    bias = hn::Max(bias, hn::Abs(load(t.bias + t.column + i)));
  bound.bias = hn::GetLane(hn::MaxOfLanes(D(), bias));
  return bound;
}

inline Way tile_way(const Tile& t, const Bound& row, const ColumnBound& columns) {
  const auto k = static_cast<float>(t.num_segments * t.length);
  // Rounding enlarges a product by at most 2^-17. The factor 1.001 + k 2^-24 covers the rounding errors of these
  // bounds.
  return way(row.largest * columns.panels.largest,
             row.norm * columns.panels.norm * (1.001f + k * 0x1p-24f) + k * 0x1p-17f + columns.bias);
}

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
