// Depthwise convolution: 16 channels at a time, several output pixels in registers.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/depthwise.cpp"
#include "cpu/conv.h"

#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/epilogue-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

template <int kRows>
void pixels(const Tile& t) {
  const D d;
  for (int64_t i = 0; i < t.num_panels * kPanelVectors; ++i) {
    const int64_t column = t.column + i * kLanes, left = t.num_columns - column;
    if (left <= 0) return;
    const float* weights =
        reinterpret_cast<const float*>(t.panels + i / kPanelVectors * t.panel_bytes) + i % kPanelVectors * kLanes;
    V acc[kRows][1];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) acc[m][0] = hn::Zero(d);
    for (int64_t s = 0; s < t.num_segments; ++s) {
      const float* a[kRows];
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) a[m] = t.a[s * kTileRows + m] + column;
      if (left >= kLanes) {
        for (int64_t l = 0; l < t.length; ++l, weights += kPanelLanes) {
          const V weight = load(weights);
#pragma GCC unroll 8
          for (int m = 0; m < kRows; ++m) acc[m][0] = hn::MulAdd(weight, load(a[m] + l * t.tap_stride), acc[m][0]);
        }
      } else {
        for (int64_t l = 0; l < t.length; ++l, weights += kPanelLanes)
          for (int m = 0; m < kRows; ++m)
            acc[m][0] = hn::MulAdd(load(weights), load_n(a[m] + l * t.tap_stride, left), acc[m][0]);
      }
    }
    finish<kRows, 1>(t, column, acc);
  }
}

void any_pixels(const Tile& t) {
  switch (t.rows) {
    case 1:
      return pixels<1>(t);
    case 2:
      return pixels<2>(t);
    case 3:
      return pixels<3>(t);
    case 4:
      return pixels<4>(t);
    case 5:
      return pixels<5>(t);
    default:
      return pixels<6>(t);
  }
}

}  // namespace

DepthwiseTile depthwise_of_target() { return any_pixels; }

}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(depthwise_of_target);

DepthwiseTile depthwise_tile() {
  static const DepthwiseTile tile = HWY_DYNAMIC_DISPATCH(depthwise_of_target)();
  return tile;
}

}  // namespace hexane::cpu
#endif
