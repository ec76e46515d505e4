// The innermost loops of strided copies. A transpose moves square tiles of 128-bit blocks through registers and writes
// whole vectors; tiles at the end of an axis overlap their neighbours instead of having a tail.
#include <algorithm>
#include <cstring>

#include "cpu/move/strided_copy.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/move/copy_bodies.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// ---- bodies: each copies rows x cols units ----

// Copies a run that is too long for a register and too short for memcpy to pay.
void copy_vectors(std::byte* out, const std::byte* in, int64_t bytes) {
  const hn::ScalableTag<uint8_t> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto* from = reinterpret_cast<const uint8_t*>(in);
  auto* to = reinterpret_cast<uint8_t*>(out);
  int64_t i = 0;
  for (; i + lanes <= bytes; i += lanes) hn::StoreU(hn::LoadU(d, from + i), d, to + i);
  if (i < bytes) hn::StoreU(hn::LoadU(d, from + bytes - lanes), d, to + bytes - lanes);
}

void copy_runs(std::byte* out, const std::byte* in, const StridedCopy& copy) {
  const int64_t bytes = copy.unit;
  for (int64_t r = 0; r < copy.rows.extent; ++r, out += copy.rows.out, in += copy.rows.in) {
    std::byte* to = out;
    const std::byte* from = in;
    for (int64_t c = 0; c < copy.cols.extent; ++c, to += copy.cols.out, from += copy.cols.in)
      if (bytes > 64 && bytes <= 2048)
        copy_vectors(to, from, bytes);
      else
        copy_run(to, from, bytes);
  }
}

template <int kBytes>
struct Unit {
  unsigned char bytes[kBytes];
};

// Copies a unit by memcpy of a constant size: the compiler makes it one move, and alignment does not matter.
template <int kBytes>
HWY_INLINE void copy_unit(std::byte* out, const std::byte* in) {
  std::memcpy(out, in, kBytes);
}

template <int kBytes>
void copy_units(std::byte* out, const std::byte* in, const StridedCopy& copy) {
  for (int64_t r = 0; r < copy.rows.extent; ++r, out += copy.rows.out, in += copy.rows.in) {
    std::byte* to = out;
    const std::byte* from = in;
    for (int64_t c = 0; c < copy.cols.extent; ++c, to += copy.cols.out, from += copy.cols.in)
      copy_unit<kBytes>(to, from);
  }
}

// Repeats one unit along each row.
template <int kBytes>
void fill_units(std::byte* out, const std::byte* in, const StridedCopy& copy) {
  for (int64_t r = 0; r < copy.rows.extent; ++r, out += copy.rows.out, in += copy.rows.in) {
    Unit<kBytes> unit;
    std::memcpy(&unit, in, kBytes);
    for (int64_t c = 0; c < copy.cols.extent; ++c) std::memcpy(out + c * kBytes, &unit, kBytes);
  }
}

template <typename T>
void fill(std::byte* out, const std::byte* in, const StridedCopy& copy) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), cols = copy.cols.extent;
  if (cols < lanes) return fill_units<sizeof(T)>(out, in, copy);
  for (int64_t r = 0; r < copy.rows.extent; ++r, out += copy.rows.out, in += copy.rows.in) {
    T unit;
    std::memcpy(&unit, in, sizeof(T));
    T* to = reinterpret_cast<T*>(out);
    const auto v = hn::Set(d, unit);
    for (int64_t c = 0; c + lanes <= cols; c += lanes) hn::StoreU(v, d, to + c);
    hn::StoreU(v, d, to + cols - lanes);
  }
}

constexpr int64_t kBlocks = HWY_MAX_BYTES / 16;

// Loads a vector: its block b is 16 bytes from the input row b * (lanes of a block).
template <class D, class T = hn::TFromD<D> >
HWY_INLINE hn::Vec<D> load_blocks(D d, const std::byte* in, int64_t block_stride) {
  if constexpr (sizeof(T) * hn::MaxLanes(D()) == 16) {
    return hn::LoadU(d, reinterpret_cast<const T*>(in));
  } else {
    const hn::Half<D> half;
    constexpr int64_t kHalf = hn::MaxLanes(D()) * sizeof(T) / 32;
    return hn::Combine(d, load_blocks(half, in + kHalf * block_stride, block_stride),
                       load_blocks(half, in, block_stride));
  }
}

// Transposes a tile: (blocks * n) input rows of n units each become n output rows of (blocks * n) units, n = 16 / unit.
//
//   load     v[i] = row i | row n + i | ...                         (a 16-byte block of each)
//   shuffle  log2(n) times: v[2i], v[2i + 1] = interleave(v[i], v[i + n / 2])
//   store    v[j] = unit j of every row
template <class D>
HWY_INLINE void transpose_tile(D d, std::byte* out, int64_t out_stride, const std::byte* in, int64_t in_stride) {
  using T = hn::TFromD<D>;
  constexpr int kSide = 16 / sizeof(T);
  hn::Vec<D> v[kSide], w[kSide];
  for (int i = 0; i < kSide; ++i) v[i] = load_blocks(d, in + i * in_stride, kSide * in_stride);
  for (int step = 1; step < kSide; step *= 2) {
    for (int i = 0; i < kSide / 2; ++i) {
      w[2 * i] = hn::InterleaveLower(d, v[i], v[i + kSide / 2]);
      w[2 * i + 1] = hn::InterleaveUpper(d, v[i], v[i + kSide / 2]);
    }
    for (int i = 0; i < kSide; ++i) v[i] = w[i];
  }
  for (int j = 0; j < kSide; ++j) hn::StoreU(v[j], d, reinterpret_cast<T*>(out + j * out_stride));
}

// Transposes by tiles. copy.rows is contiguous in the input, copy.cols is contiguous in the output. copy.rows and
// copy.cols have at least the extent of a tile.
template <class D>
void transpose_tiles(D d, std::byte* out, const std::byte* in, const StridedCopy& copy) {
  using T = hn::TFromD<D>;
  constexpr int64_t kRows = 16 / sizeof(T), kCols = hn::MaxLanes(D()), kBytes = sizeof(T);
  constexpr int64_t kPanel = 256 / kBytes;  // read four cache lines of each input row before the next
  for (int64_t panel = 0; panel < copy.rows.extent; panel += kPanel) {
    const int64_t end = std::min(panel + kPanel, copy.rows.extent);
    for (int64_t c = 0; c < copy.cols.extent; c += kCols) {
      const int64_t col = std::min(c, copy.cols.extent - kCols);
      for (int64_t r = panel; r < end; r += kRows) {
        const int64_t row = std::min(r, copy.rows.extent - kRows);
        transpose_tile(d, out + row * copy.rows.out + col * kBytes, copy.rows.out,
                       in + row * kBytes + col * copy.cols.in, copy.cols.in);
      }
    }
  }
}

// Interleaves two to four planes to pixels. copy.cols.extent: number of planes; copy.rows.extent: number of pixels.
template <typename T>
void planes_to_pixels(std::byte* out, const std::byte* in, const StridedCopy& copy) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), planes = copy.cols.extent;
  const auto plane = [&](int64_t p, int64_t i) {
    return hn::LoadU(d, reinterpret_cast<const T*>(in + p * copy.cols.in) + i);
  };
  for (int64_t pixel = 0; pixel < copy.rows.extent; pixel += lanes) {
    const int64_t i = std::min(pixel, copy.rows.extent - lanes);
    T* to = reinterpret_cast<T*>(out) + i * planes;
    if (planes == 2)
      hn::StoreInterleaved2(plane(0, i), plane(1, i), d, to);
    else if (planes == 3)
      hn::StoreInterleaved3(plane(0, i), plane(1, i), plane(2, i), d, to);
    else
      hn::StoreInterleaved4(plane(0, i), plane(1, i), plane(2, i), plane(3, i), d, to);
  }
}

// Splits pixels of two to four units into planes. copy.rows.extent: number of planes; copy.cols.extent: number of
// pixels.
template <typename T>
void pixels_to_planes(std::byte* out, const std::byte* in, const StridedCopy& copy) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), planes = copy.rows.extent;
  const auto store = [&](hn::Vec<decltype(d)> v, int64_t p, int64_t i) {
    hn::StoreU(v, d, reinterpret_cast<T*>(out + p * copy.rows.out) + i);
  };
  for (int64_t pixel = 0; pixel < copy.cols.extent; pixel += lanes) {
    const int64_t i = std::min(pixel, copy.cols.extent - lanes);
    const T* from = reinterpret_cast<const T*>(in) + i * planes;
    hn::Vec<decltype(d)> v0, v1, v2, v3;
    if (planes == 2) {
      hn::LoadInterleaved2(d, from, v0, v1);
    } else if (planes == 3) {
      hn::LoadInterleaved3(d, from, v0, v1, v2);
      store(v2, 2, i);
    } else {
      hn::LoadInterleaved4(d, from, v0, v1, v2, v3);
      store(v2, 2, i);
      store(v3, 3, i);
    }
    store(v0, 0, i);
    store(v1, 1, i);
  }
}

template <typename T>
void transpose(std::byte* out, const std::byte* in, const StridedCopy& copy) {
  constexpr int64_t kBytes = sizeof(T), kSide = 16 / kBytes;
  const int64_t rows = copy.rows.extent, cols = copy.cols.extent;
  if (cols >= kSide * kBlocks && rows >= kSide)
    transpose_tiles(hn::CappedTag<T, kSide * kBlocks>(), out, in, copy);
  else if (cols >= kSide && rows >= kSide)
    transpose_tiles(hn::FixedTag<T, kSide>(), out, in, copy);
  else if (cols <= 4 && copy.rows.out == cols * kBytes && rows >= kSide * kBlocks)
    planes_to_pixels<T>(out, in, copy);
  else if (rows <= 4 && copy.cols.in == rows * kBytes && cols >= kSide * kBlocks)
    pixels_to_planes<T>(out, in, copy);
  else
    copy_units<sizeof(T)>(out, in, copy);
}

// ---- choosing a body ----

StridedCopy::Body body_of_units(int64_t bytes) {
  switch (bytes) {
    case 1:
      return copy_units<1>;
    case 2:
      return copy_units<2>;
    case 4:
      return copy_units<4>;
    case 8:
      return copy_units<8>;
    case 16:
      return copy_units<16>;
    default:
      return copy_runs;
  }
}

StridedCopy::Body body_of_fill(int64_t bytes) {
  switch (bytes) {
    case 1:
      return fill<uint8_t>;
    case 2:
      return fill<uint16_t>;
    case 4:
      return fill<uint32_t>;
    case 8:
      return fill<uint64_t>;
    case 16:
      return fill_units<16>;
    default:
      return copy_runs;
  }
}

StridedCopy::Body body_of_transpose(int64_t bytes) {
  switch (bytes) {
    case 1:
      return transpose<uint8_t>;
    case 2:
      return transpose<uint16_t>;
    case 4:
      return transpose<uint32_t>;
    case 8:
      return transpose<uint64_t>;
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace hexane::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {

HWY_EXPORT(body_of_units);
HWY_EXPORT(body_of_fill);
HWY_EXPORT(body_of_transpose);

StridedCopy::Body units_body(int64_t bytes) { return HWY_DYNAMIC_DISPATCH(body_of_units)(bytes); }
StridedCopy::Body fill_body(int64_t bytes) { return HWY_DYNAMIC_DISPATCH(body_of_fill)(bytes); }
StridedCopy::Body transpose_body(int64_t bytes) { return HWY_DYNAMIC_DISPATCH(body_of_transpose)(bytes); }

}  // namespace hexane::cpu
#endif
