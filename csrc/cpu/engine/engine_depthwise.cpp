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
    const float* bias = t.bias ? t.bias + column : nullptr;
    PanelEnd end;
    std::memcpy(&end, panel + taps * kPanelLanes * sizeof(float), sizeof end);
    V largest = hn::Zero(D());
    for (int64_t j = 0; j < w.kernel_h * w.window; ++j)
      largest = hn::Max(largest, hn::Abs(load_n(t.a[j] + column, left)));
    const float most = hn::GetLane(hn::MaxOfLanes(D(), largest)) * end.bound.largest;
    const float offset = bias ? hn::GetLane(hn::MaxOfLanes(D(), hn::Abs(load(bias)))) : 0;
    const auto input = [&](int64_t kh, int64_t kw, int m) {
      return t.a[kh * w.window + m * w.stride_w + kw * w.dilation_w] + column;
    };
    V results[kRows][1];
    if (HWY_LIKELY(most < 63.9f && (most + 0x1p-17f) * static_cast<float>(taps) + offset < 32760.0f)) {
      VI acc[kRows];
      for (int m = 0; m < kRows; ++m) acc[m] = start(bias, taps);
      for (int64_t kh = 0; kh < w.kernel_h; ++kh)
        for (int64_t kw = 0; kw < w.kernel_w; ++kw) {
          const V weight = load(weights + (kh * w.kernel_w + kw) * kPanelLanes), size = weight_size(weight);
#pragma GCC unroll 8
          for (int m = 0; m < kRows; ++m) {
            const V x = load_n(input(kh, kw, m), left);
            acc[m] = hn::Add(acc[m], product(x, weight, size, least_weight(x)));
          }
        }
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) results[m][0] = round_fixed(acc[m]);
    } else {
      for (int m = 0; m < kRows; ++m) {
        HWY_ALIGN float row[kLanes] = {};
        for (int64_t lane = 0; lane < HWY_MIN(left, int64_t{kLanes}); ++lane) {
          Accumulator acc(bias ? bias[lane] : 0);
          for (int64_t tap = 0; tap < taps; ++tap)
            acc.add(input(tap / w.kernel_w, tap % w.kernel_w, m)[lane], weights[tap * kPanelLanes + lane]);
          row[lane] = acc.result();
        }
        results[m][0] = hn::Load(D(), row);
      }
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
