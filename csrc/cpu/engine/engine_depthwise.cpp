// Depthwise convolutions in the engine's arithmetic: a vector of channels at a time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/engine/engine_depthwise.cpp"
#include "cpu/engine/engine_tile.h"

#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/engine/bounds-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

// Adds the products of one kernel row of kTaps adjacent taps. Each input is loaded once and multiplied with every tap
// that reaches it.
template <class Way, int kRows, int kTaps, int kStride>
HWY_INLINE void add_row(const float* const* a, int64_t column, int64_t left, const float* weights,
                        typename Way::Sum (&sum)[kRows]) {
  typename Way::Weight weight[kTaps];
#pragma GCC unroll 4
  for (int tap = 0; tap < kTaps; ++tap) weight[tap] = Way::weight(load(weights + tap * kPanelLanes));
#pragma GCC unroll 32
  for (int j = 0; j < (kRows - 1) * kStride + kTaps; ++j) {
    const auto x = Way::input(load_n(a[j] + column, left));
#pragma GCC unroll 4
    for (int tap = 0; tap < kTaps; ++tap) {
      const int m = (j - tap) / kStride;
      if (j >= tap && (j - tap) % kStride == 0 && m < kRows) Way::add(sum[m], x, weight[tap]);
    }
  }
}

// Sums all taps for the channels from `column` on; `left` channels remain. `weights`: the vector of these channels for
// each tap. Terms are added in the order of the taps.
template <class Way, int kRows>
HWY_INLINE void add_taps(const DepthwiseTile& w, const Tile& t, int64_t column, int64_t left, const float* weights,
                         V (&results)[kRows][1]) {
  typename Way::Sum sum[kRows];
  const auto start = Way::start(t.bias ? t.bias + column : nullptr, w.kernel_h * w.kernel_w);
  for (int m = 0; m < kRows; ++m) sum[m] = start;
  const bool three = w.kernel_w == 3 && w.dilation_w == 1;
  for (int64_t kh = 0; kh < w.kernel_h; ++kh, weights += w.kernel_w * kPanelLanes) {
    const float* const* a = t.a + kh * w.window;
    if (three && w.stride_w == 1) {
      add_row<Way, kRows, 3, 1>(a, column, left, weights, sum);
    } else if (three && w.stride_w == 2) {
      add_row<Way, kRows, 3, 2>(a, column, left, weights, sum);
    } else {
      for (int64_t kw = 0; kw < w.kernel_w; ++kw) {
        const auto weight = Way::weight(load(weights + kw * kPanelLanes));
#pragma GCC unroll 8
        for (int m = 0; m < kRows; ++m)
          Way::add(sum[m], Way::input(load_n(a[m * w.stride_w + kw * w.dilation_w] + column, left)), weight);
      }
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) results[m][0] = Way::result(sum[m]);
}

template <int kRows>
void depthwise_rows(const DepthwiseTile& w, const Tile& t) {
  const int64_t taps = w.kernel_h * w.kernel_w;
  Tile rest = t;
  rest.bias = nullptr;
  for (int64_t i = 0; i < t.num_panels * kPanelVectors; ++i) {
    const int64_t column = t.column + i * kLanes, left = t.num_columns - column;
    if (left <= 0) return;
    const std::byte* panel = t.panels + i / kPanelVectors * t.panel_bytes;
    const float* weights = reinterpret_cast<const float*>(panel) + i % kPanelVectors * kLanes;
    PanelEnd end;
    std::memcpy(&end, panel + taps * kPanelLanes * sizeof(float), sizeof end);
    V largest = hn::Zero(D());
    for (int64_t j = 0; j < w.kernel_h * w.window; ++j)
      largest = hn::Max(largest, hn::Abs(load_n(t.a[j] + column, left)));
    const float most = hn::GetLane(hn::MaxOfLanes(D(), largest)) * end.bound.largest;
    const float bias = t.bias ? hn::GetLane(hn::MaxOfLanes(D(), hn::Abs(load(t.bias + column)))) : 0;
    V results[kRows][1];
    switch (way(most, (most + 0x1p-17f) * static_cast<float>(taps) + bias)) {
      case Way::kSmall:
        add_taps<SmallProducts>(w, t, column, left, weights, results);
        break;
      case Way::kBounded:
        add_taps<BoundedSums>(w, t, column, left, weights, results);
        break;
      case Way::kAny:
        add_taps<AnyProducts>(w, t, column, left, weights, results);
    }
    finish<kRows, 1>(rest, column, results);
  }
}

void depthwise(const DepthwiseTile& w, const Tile& t) {
  if (t.rows == 7) return depthwise_rows<7>(w, t);
  if (t.rows == 4) return depthwise_rows<4>(w, t);
  depthwise_rows<1>(w, t);
}

}  // namespace

DepthwiseFunction depthwise_of_target() { return depthwise; }

}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(depthwise_of_target);

DepthwiseFunction engine_depthwise() {
  static const DepthwiseFunction function = HWY_DYNAMIC_DISPATCH(depthwise_of_target)();
  return function;
}

}  // namespace hexane::cpu
#endif
