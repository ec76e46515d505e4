// The register tile of matrix multiply and convolution, for each instruction set, with its epilogue.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/matmul/gemm.cpp"
#include "cpu/matmul/gemm.h"

#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/simd/epilogue-inl.h"
#include "cpu/sums.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

// Adds this block of a sum to the total of the previous blocks. Returns false if more blocks follow.
template <int kRows, int kVectors>
HWY_INLINE bool add_block(const Tile& t, int first_panel, V (&acc)[kRows][kVectors]) {
  float* sums = t.sums + first_panel * kPanelLanes;
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      float* at = sums + m * t.sums_pitch + v * kLanes;
      acc[m][v] = hn::Add(t.first_block ? hn::Zero(D()) : load(at), acc[m][v]);
      if (!t.last_block) hn::StoreU(acc[m][v], D(), at);
    }
  return t.last_block;
}

template <int kRows, int kPanels, class T, bool kLong>
void tile(const Tile& t, int first_panel) {
  constexpr int kVectors = kPanels * kPanelVectors;
  const D d;
  V acc[kRows][kVectors];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) acc[m][v] = hn::Zero(d);
  const T* b = reinterpret_cast<const T*>(t.panels + first_panel * t.panel_bytes);
  const int64_t panel_items = t.panel_bytes / static_cast<int64_t>(sizeof(T));
  const int64_t column = t.column + first_panel * kPanelLanes;
  // Prefetches the cache lines of the output while the products run.
  if (!t.sums || t.last_block)
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 16
      for (int p = 0; p < kPanels; ++p)
        __builtin_prefetch(t.out[m] + (column + p * kPanelLanes) * (t.half_output ? 2 : 4));
  const auto add_terms = [&](const float* const* a, int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t l = begin; l < end; ++l, b += kPanelLanes) {
      // A single row needs the next panels soon, and hardware fetches ahead only within a page of memory. Panels in
      // fp32 gain nothing.
      if constexpr (kRows == 1 && sizeof(T) == 2)
        if (reinterpret_cast<uintptr_t>(b) % 64 < kPanelLanes * sizeof(T))
#pragma GCC unroll 16
          for (int p = kPanels; p < 2 * kPanels; ++p) __builtin_prefetch(b + p * panel_items, 0, 2);
      V right[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v)
        right[v] = load(b + v / kPanelVectors * panel_items + v % kPanelVectors * kLanes);
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m) {
        const V left = hn::Set(d, a[m][l]);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) acc[m][v] = hn::MulAdd(left, right[v], acc[m][v]);
      }
    }
  };
  [[maybe_unused]] Totals<kRows, kVectors> totals;
  [[maybe_unused]] const int64_t block = sum_block(t.num_segments * t.length);
  [[maybe_unused]] int64_t room = block;
  for (int64_t s = 0; s < t.num_segments; ++s) {
    const float* a[kRows];
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) a[m] = t.a[s * kTileRows + m];
    if constexpr (kLong) {
      for (int64_t l = 0; l < t.length;) {
        if (HWY_UNLIKELY(room == 0)) {
          totals.add(acc);
          room = block;
        }
        const int64_t end = HWY_MIN(t.length, l + room);
        add_terms(a, l, end);
        room -= end - l;
        l = end;
      }
    } else {
      add_terms(a, 0, t.length);
    }
  }
  if constexpr (kLong)
    totals.add_to(acc);
  else if (t.sums && !add_block<kRows, kVectors>(t, first_panel, acc))
    return;
  if constexpr (kLong || sizeof(T) == 2)
    finish_through_memory<kRows, kVectors>(t, column, acc);
  else
    finish<kRows, kVectors>(t, column, acc);
}

template <int kPanels, class T, bool kLong>
void tile_rows(const Tile& t, int first_panel) {
  switch (t.rows) {
    case 1:
      return tile<1, kPanels, T, kLong>(t, first_panel);
    case 2:
      return tile<2, kPanels, T, kLong>(t, first_panel);
    case 3:
      return tile<3, kPanels, T, kLong>(t, first_panel);
    case 4:
      return tile<4, kPanels, T, kLong>(t, first_panel);
    case 5:
      return tile<5, kPanels, T, kLong>(t, first_panel);
    default:
      return tile<6, kPanels, T, kLong>(t, first_panel);
  }
}

template <class T, bool kLong>
void tile_panels(const Tile& t) {
  if constexpr (kPanelsAtOnce == 1) {
    for (int p = 0; p < t.num_panels; ++p) tile_rows<1, T, kLong>(t, p);
  } else {
    switch (t.num_panels) {
      case 1:
        return tile_rows<1, T, kLong>(t, 0);
      case 2:
        return tile_rows<2, T, kLong>(t, 0);
      case 3:
        return tile_rows<3, T, kLong>(t, 0);
      default:
        return tile_rows<4, T, kLong>(t, 0);
    }
  }
}

template <class T>
void tile_any(const Tile& t) {
  t.num_segments* t.length > kShortSum ? tile_panels<T, true>(t) : tile_panels<T, false>(t);
}

void to_fp32(const std::byte* from, DType dtype, int64_t n, float* to) {
  if (dtype == DType::kFp32) {
    std::memcpy(to, from, n * sizeof(float));
    return;
  }
  if (dtype == DType::kBf16) {
    const auto* p = reinterpret_cast<const uint16_t*>(from);
    for (int64_t i = 0; i < n; i += kLanes) store_n(load_bf16_n(p + i, n - i), to + i, n - i);
    return;
  }
  const auto* p = reinterpret_cast<const hwy::float16_t*>(from);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(load(p + i), D(), to + i);
  if (i < n) {
    float padded[kLanes];
    hn::StoreU(load_n(p + i, n - i), D(), padded);
    std::memcpy(to + i, padded, (n - i) * sizeof(float));
  }
}

template <class T>
float dot(const float* x, const T* y, int64_t k) {
  const D d;
  const int64_t block = sum_block(k / (4 * kLanes)) * 4 * kLanes;
  V total[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  for (int64_t i = 0; i < k;) {
    V acc[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    const int64_t end = HWY_MIN(k, i + block);
    for (; i + 4 * kLanes <= end; i += 4 * kLanes)
#pragma GCC unroll 4
      for (int u = 0; u < 4; ++u) acc[u] = hn::MulAdd(load(x + i + u * kLanes), load(y + i + u * kLanes), acc[u]);
    for (; i < end; i += kLanes) acc[0] = hn::MulAdd(load_n(x + i, end - i), load_n(y + i, end - i), acc[0]);
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) total[u] = hn::Add(total[u], acc[u]);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(total[0], total[1]), hn::Add(total[2], total[3]))));
}

template <class T>
void dot_rows_of(const float* x, const std::byte* y, int64_t stride, int64_t k, int64_t n, float* out) {
  for (int64_t j = 0; j < n; ++j) out[j] = dot(x, reinterpret_cast<const T*>(y + j * stride), k);
}

void dot_rows(const float* x, const std::byte* y, DType dtype, int64_t stride, int64_t k, int64_t n, float* out) {
  if (dtype == DType::kFp32) return dot_rows_of<float>(x, y, stride, k, n, out);
  dot_rows_of<hwy::float16_t>(x, y, stride, k, n, out);
}

// Adds the products of kVectors vectors of columns, which stay in registers over all k.
template <int kVectors, class T>
void add_columns(const float* x, const std::byte* y, int64_t stride, int64_t k, int64_t n, float* out) {
  const D d;
  const int64_t block = sum_block(k);
  V total[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) total[v] = hn::Zero(d);
  for (int64_t i = 0; i < k;) {
    V acc[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) acc[v] = hn::Zero(d);
    for (const int64_t end = HWY_MIN(k, i + block); i < end; ++i) {
      const T* row = reinterpret_cast<const T*>(y + i * stride);
      const V left = hn::Set(d, x[i]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        acc[v] = hn::MulAdd(left, kVectors == 1 ? load_n(row, n) : load(row + v * kLanes), acc[v]);
    }
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) total[v] = hn::Add(total[v], acc[v]);
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) store_any(total[v], reinterpret_cast<std::byte*>(out), false, v * kLanes, n);
}

template <class T>
void add_rows_of(const float* x, const std::byte* y, int64_t stride, int64_t k, int64_t n, float* out) {
  int64_t j = 0;
  for (; j + 4 * kLanes <= n; j += 4 * kLanes) add_columns<4, T>(x, y + j * sizeof(T), stride, k, 4 * kLanes, out + j);
  for (; j < n; j += kLanes) add_columns<1, T>(x, y + j * sizeof(T), stride, k, n - j, out + j);
}

void add_rows(const float* x, const std::byte* y, DType dtype, int64_t stride, int64_t k, int64_t n, float* out) {
  if (dtype == DType::kFp32) return add_rows_of<float>(x, y, stride, k, n, out);
  add_rows_of<hwy::float16_t>(x, y, stride, k, n, out);
}

void finish_row(const Tile& t, float* row, int64_t n) { finish_in_memory(t, t.column, 1, n, row, 0); }

}  // namespace

const GemmOps kGemmOps = {tile_any<float>, tile_any<hwy::float16_t>, tile_any<Bf16>, to_fp32, dot_rows, add_rows,
                          finish_row};
const GemmOps* ops_of_target() { return &kGemmOps; }

}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(ops_of_target);

const GemmOps& gemm_ops() {
  static const GemmOps& ops = *HWY_DYNAMIC_DISPATCH(ops_of_target)();
  return ops;
}

const Arithmetic& ieee_arithmetic() {
  static const Arithmetic arithmetic = {gemm_ops().to_fp32, gemm_ops().tile_fp32, nullptr, 0};
  return arithmetic;
}

void multiply_row(const float* x, const std::byte* y, DType dtype, int64_t k_stride, int64_t n_stride, int64_t k,
                  int64_t n, Range columns, float* out) {
  const int64_t item = dtype == DType::kFp32 ? 4 : 2, count = columns.end - columns.begin;
  y += columns.begin * n_stride;
  // A single column is a dot product, which is fastest over dense terms.
  if (n > 1 ? n_stride == item : k_stride != item)
    gemm_ops().add_rows(x, y, dtype, k_stride, k, count, out);
  else
    gemm_ops().dot_rows(x, y, dtype, n_stride, k, count, out);
}

}  // namespace hexane::cpu
#endif
