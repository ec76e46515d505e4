// Depthwise convolutions and convolutions with groups of four channels. The kernels compute one vector of channels at a
// time, for several output pixels in registers.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/spatial/depthwise.cpp"
#include "cpu/spatial/conv.h"

#include <optional>

#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/simd/epilogue-inl.h"
#include "cpu/sums.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

// The taps of a block of a long sum: some kernel rows, or some taps of one row.
struct TapBlock {
  int64_t rows, taps;
};

bool is_long(const DepthwiseTile& w) {
  const int64_t taps = w.kernel_h * w.kernel_w;
  return taps > kShortSum && taps > sum_block(taps);
}

TapBlock tap_block(const DepthwiseTile& w) {  // blocks of taps for a long sum
  const int64_t most = sum_block(w.kernel_h * w.kernel_w);
  return w.kernel_w < most ? TapBlock{most / w.kernel_w, w.kernel_w} : TapBlock{1, most};
}

// Loads the first n of kLanes channels of a pixel, as fp32: T is float or, for bf16, uint16_t.
template <class T>
HWY_INLINE V pixel_n(const float* pixel, int64_t column, int64_t n) {
  if constexpr (sizeof(T) == 4)
    return load_n(pixel + column, n);
  else
    return load_bf16_n(reinterpret_cast<const uint16_t*>(pixel) + column, n);
}

// Adds one kernel row to 16 channels of kRows adjacent output pixels. Each input vector is loaded once and multiplied
// with every tap that reaches it. Each pixel adds its taps in order.
template <int kRows, int kTaps, int kStride, class T>
HWY_INLINE void add_row(const float* const* a, int64_t column, const float* weights, V (&acc)[kRows][1]) {
  V weight[kTaps];
#pragma GCC unroll 8
  for (int l = 0; l < kTaps; ++l) weight[l] = load(weights + l * kPanelLanes);
#pragma GCC unroll 32
  for (int j = 0; j < (kRows - 1) * kStride + kTaps; ++j) {
    const V x = pixel_n<T>(a[j], column, kLanes);
#pragma GCC unroll 8
    for (int l = 0; l < kTaps; ++l) {
      const int m = (j - l) / kStride;
      if (j >= l && (j - l) % kStride == 0 && m < kRows) acc[m][0] = hn::MulAdd(weight[l], x, acc[m][0]);
    }
  }
}

// Like add_row(), for taps [begin, end) of any kernel, stride and dilation, and for a partial vector of channels.
template <int kRows, class T>
HWY_INLINE void add_row_any(const DepthwiseTile& w, const float* const* a, int64_t column, int64_t left, int64_t begin,
                            int64_t end, const float* weights, V (&acc)[kRows][1]) {
  for (int64_t l = begin; l < end; ++l) {
    const V weight = load(weights + l * kPanelLanes);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m)
      acc[m][0] = hn::MulAdd(weight, pixel_n<T>(a[m * w.stride_w + l * w.dilation_w], column, left), acc[m][0]);
  }
}

// Adds all taps in one sum.
template <int kRows, int kTaps, int kStride, class T>
HWY_INLINE void add_taps(const DepthwiseTile& w, const float* const* a, int64_t column, int64_t left,
                         const float* weights, V (&acc)[kRows][1]) {
  for (int64_t kh = 0; kh < w.kernel_h; ++kh, a += w.window, weights += w.kernel_w * kPanelLanes) {
    if constexpr (kTaps > 0 && !kHasMasks)
      add_row<kRows, kTaps, kStride, T>(a, column, weights, acc);
    else if (kTaps > 0 && left >= kLanes)
      add_row<kRows, HWY_MAX(kTaps, 1), HWY_MAX(kStride, 1), T>(a, column, weights, acc);
    else
      add_row_any<kRows, T>(w, a, column, left, 0, w.kernel_w, weights, acc);
  }
}

// Adds all taps in blocks.
template <int kRows, class T>
HWY_INLINE void add_blocks(const DepthwiseTile& w, const float* const* a, int64_t column, int64_t left,
                           const float* weights, V (&acc)[kRows][1]) {
  const TapBlock block = tap_block(w);
  Totals<kRows, 1> totals;
  for (int64_t kh = 0; kh < w.kernel_h;) {
    if (kh) totals.add(acc);
    for (const int64_t end = HWY_MIN(w.kernel_h, kh + block.rows); kh < end;
         ++kh, a += w.window, weights += w.kernel_w * kPanelLanes)
      for (int64_t l = 0; l < w.kernel_w; l += block.taps) {
        if (l) totals.add(acc);
        add_row_any<kRows, T>(w, a, column, left, l, HWY_MIN(w.kernel_w, l + block.taps), weights, acc);
      }
  }
  totals.add_to(acc);
}

// Computes the vectors of channels from number `first` on. Without masks, the code for given taps leaves a partial
// vector to the code for any taps.
template <int kRows, int kTaps, int kStride, bool kLong, class T>
void pixels(const DepthwiseTile& w, const Tile& t, int64_t first = 0) {
  for (int64_t i = first; i < t.num_panels * kPanelVectors; ++i) {
    const int64_t column = t.column + i * kLanes, left = t.num_columns - column;
    if (left <= 0) return;
    if constexpr (kTaps > 0 && !kHasMasks)
      if (left < kLanes) return pixels<kRows, 0, 0, false, T>(w, t, i);
    const float* weights =
        reinterpret_cast<const float*>(t.panels + i / kPanelVectors * t.panel_bytes) + i % kPanelVectors * kLanes;
    V acc[kRows][1];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) acc[m][0] = hn::Zero(D());
    if constexpr (kLong)
      add_blocks<kRows, T>(w, t.a, column, left, weights, acc);
    else
      add_taps<kRows, kTaps, kStride, T>(w, t.a, column, left, weights, acc);
    if constexpr (kLong)
      finish_through_memory<kRows, 1>(t, column, acc);
    else
      finish<kRows, 1, true>(t, column, acc);
  }
}

template <int kRows, class T>
void any_kernel(const DepthwiseTile& w, const Tile& t) {
  if (is_long(w)) return pixels<kRows, 0, 0, true, T>(w, t);
  const bool dense = w.dilation_w == 1;
  if (dense && w.kernel_w == 3 && w.stride_w == 1) return pixels<kRows, 3, 1, false, T>(w, t);
  if (dense && w.kernel_w == 3 && w.stride_w == 2) return pixels<kRows, 3, 2, false, T>(w, t);
  if (dense && w.kernel_w == 5 && w.stride_w == 1) return pixels<kRows, 5, 1, false, T>(w, t);
  if (dense && w.kernel_w == 5 && w.stride_w == 2) return pixels<kRows, 5, 2, false, T>(w, t);
  pixels<kRows, 0, 0, false, T>(w, t);
}

template <class T>
void any_pixels(const DepthwiseTile& w, const Tile& t) {
  switch (t.rows) {
    case 7:
      return any_kernel<7, T>(w, t);
    case 4:
      return any_kernel<4, T>(w, t);
    default:
      return is_long(w) ? pixels<1, 0, 0, true, T>(w, t) : pixels<1, 0, 0, false, T>(w, t);
  }
}

// Convolution with groups of four channels: a group is a 4-lane block of a vector. Each input channel is broadcast over
// its block and multiplied with its weights for the group's four outputs.
template <int kRows>
void group_pixels(const DepthwiseTile& w, const Tile& t) {
  static_assert(kSmallGroup == 4);
  const int64_t block = sum_block(w.kernel_h * w.kernel_w * kSmallGroup) / kSmallGroup;
  for (int64_t i = 0; i < t.num_panels * kPanelVectors; ++i) {
    const int64_t column = t.column + i * kLanes, left = t.num_columns - column;
    if (left <= 0) return;
    const float* weights =
        reinterpret_cast<const float*>(t.panels + i / kPanelVectors * t.panel_bytes) + i % kPanelVectors * kLanes;
    const float* const* a = t.a;
    V acc[kRows][1];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) acc[m][0] = hn::Zero(D());
    std::optional<Totals<kRows, 1>> totals;  // used only for long sums
    int64_t room = block;
    for (int64_t kh = 0; kh < w.kernel_h; ++kh, a += w.window)
      for (int64_t l = 0; l < w.kernel_w; ++l, weights += kSmallGroup * kPanelLanes) {
        if (HWY_UNLIKELY(room-- == 0)) {
          if (!totals) totals.emplace();
          totals->add(acc);
          room = block - 1;
        }
        V weight[kSmallGroup];
#pragma GCC unroll 4
        for (int c = 0; c < kSmallGroup; ++c) weight[c] = load(weights + c * kPanelLanes);
#pragma GCC unroll 8
        for (int m = 0; m < kRows; ++m) {
          const float* from = a[m * w.stride_w + l * w.dilation_w] + column;
          const V x = left >= kLanes ? load(from) : load_n(from, left);
          acc[m][0] = hn::MulAdd(hn::Broadcast<0>(x), weight[0], acc[m][0]);
          acc[m][0] = hn::MulAdd(hn::Broadcast<1>(x), weight[1], acc[m][0]);
          acc[m][0] = hn::MulAdd(hn::Broadcast<2>(x), weight[2], acc[m][0]);
          acc[m][0] = hn::MulAdd(hn::Broadcast<3>(x), weight[3], acc[m][0]);
        }
      }
    if (totals) totals->add_to(acc);
    finish<kRows, 1>(t, column, acc);
  }
}

void any_group_pixels(const DepthwiseTile& w, const Tile& t) {
  switch (t.rows) {
    case 7:
      return group_pixels<7>(w, t);
    case 4:
      return group_pixels<4>(w, t);
    default:
      return group_pixels<1>(w, t);
  }
}

}  // namespace

DepthwiseFunctions depthwise_functions_of_target() {
  return {any_pixels<float>, any_pixels<uint16_t>, any_group_pixels};
}

}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(depthwise_functions_of_target);

const DepthwiseFunctions& depthwise_functions() {
  static const DepthwiseFunctions functions = HWY_DYNAMIC_DISPATCH(depthwise_functions_of_target)();
  return functions;
}

}  // namespace hexane::cpu
#endif
