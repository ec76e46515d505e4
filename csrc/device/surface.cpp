// Layouts, and the copies between packed elements and the rows of a surface. A copy converts elements if the two sides
// differ in type. The gaps between rows stay zero.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/surface.cpp"
#include <hwy/foreach_target.h>

// after foreach_target
#include <algorithm>
#include <cstring>

#include "core/fp16.h"
#include "core/half-inl.h"
#include "core/limits.h"
#include "device/surface.h"

#ifndef HEXANE_DEVICE_SURFACE_ROWS_
#define HEXANE_DEVICE_SURFACE_ROWS_
namespace hexane::device {

// `count` rows of `size` elements (or bytes if nothing is converted), and the bytes from row to row on each side.
struct Rows {
  int64_t count;
  int64_t size;
  int64_t packed;
  int64_t strided;
};

}  // namespace hexane::device
#endif

HWY_BEFORE_NAMESPACE();
namespace hexane::device::HWY_NAMESPACE {
namespace {

using namespace hexane::HWY_NAMESPACE;  // load_half, store_half

using Floats = hn::CappedTag<float, 16>;

// Returns the number of rows that whole vectors can copy. On the packed side a vector reaches beyond its row, so the
// last rows are excluded.
int64_t in_vectors(const Rows& rows, int64_t lanes, int64_t strided_item) {
  if (rows.size <= 0 || (rows.size + lanes - 1) / lanes * lanes * strided_item > rows.strided) return 0;
  return std::max<int64_t>(0, rows.count - (lanes + rows.size - 1) / rows.size);
}

enum class Way { kIn, kOut };  // copies packed elements into the surface, or out of the surface

// Copies rows of at most kLongRow bytes by vectors of `kBytes` bytes: 16 for rows of up to 16 bytes, else 32.
template <size_t kBytes, Way kWay>
void copy_lines(const Rows& rows, const uint8_t* from, uint8_t* to) {
  const hn::CappedTag<uint8_t, kBytes> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t vectors = in_vectors(rows, lanes, 1), whole = rows.size / lanes * lanes;
  const int64_t from_row = kWay == Way::kIn ? rows.packed : rows.strided;
  const int64_t to_row = kWay == Way::kIn ? rows.strided : rows.packed;
  const auto rest = hn::FirstN(d, static_cast<size_t>(rows.size - whole));
  for (int64_t row = 0; row < vectors; ++row, from += from_row, to += to_row) {
    for (int64_t i = 0; i < whole; i += lanes) hn::StoreU(hn::LoadU(d, from + i), d, to + i);
    if (whole == rows.size) continue;
    const auto last = hn::LoadU(d, from + whole);
    hn::StoreU(kWay == Way::kIn ? hn::IfThenElseZero(rest, last) : last, d, to + whole);
  }
  for (int64_t row = vectors; row < rows.count; ++row, from += from_row, to += to_row)
    std::memcpy(to, from, static_cast<size_t>(rows.size));
}

constexpr int64_t kLongRow = 256;  // bytes of a row; memcpy is as fast for longer rows

template <Way kWay>
void copy_rows(const Rows& rows, const std::byte* from, std::byte* to) {
  const auto* source = reinterpret_cast<const uint8_t*>(from);
  auto* target = reinterpret_cast<uint8_t*>(to);
  if (rows.size > kLongRow)
    for (int64_t row = 0; row < rows.count; ++row) {
      const int64_t packed = row * rows.packed, strided = row * rows.strided;
      std::memcpy(target + (kWay == Way::kIn ? strided : packed), source + (kWay == Way::kIn ? packed : strided),
                  static_cast<size_t>(rows.size));
    }
  else if (rows.size <= 16)
    copy_lines<16, kWay>(rows, source, target);
  else
    copy_lines<32, kWay>(rows, source, target);
}

void write_rows(const Rows& rows, const std::byte* from, std::byte* to) { copy_rows<Way::kIn>(rows, from, to); }

void read_rows(const Rows& rows, const std::byte* from, std::byte* to) { copy_rows<Way::kOut>(rows, from, to); }

void narrow_rows(const Rows& rows, const std::byte* from, std::byte* to) {
  const Floats d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t vectors = in_vectors(rows, lanes, sizeof(fp16)), whole = rows.size / lanes * lanes;
  const auto rest = hn::FirstN(d, static_cast<size_t>(rows.size - whole));
  for (int64_t row = 0; row < rows.count; ++row, from += rows.packed, to += rows.strided) {
    const auto* source = reinterpret_cast<const float*>(from);
    auto* target = reinterpret_cast<fp16*>(to);
    for (int64_t i = 0; i < whole; i += lanes)
      store_half(d, hn::LoadU(d, source + i), reinterpret_cast<hwy::float16_t*>(target + i));
    if (row >= vectors)
      for (int64_t i = whole; i < rows.size; ++i) target[i] = to_fp16(source[i]);
    else if (whole < rows.size)
      store_half(d, hn::IfThenElseZero(rest, hn::LoadU(d, source + whole)),
                 reinterpret_cast<hwy::float16_t*>(target + whole));
  }
}

void widen_rows(const Rows& rows, const std::byte* from, std::byte* to) {
  const Floats d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t vectors = in_vectors(rows, lanes, sizeof(fp16));
  for (int64_t row = 0; row < rows.count; ++row, from += rows.strided, to += rows.packed) {
    const auto* source = reinterpret_cast<const fp16*>(from);
    auto* target = reinterpret_cast<float*>(to);
    const int64_t end = row < vectors ? rows.size : rows.size / lanes * lanes;
    for (int64_t i = 0; i < end; i += lanes)
      hn::StoreU(load_half(d, reinterpret_cast<const hwy::float16_t*>(source + i)), d, target + i);
    for (int64_t i = end; i < rows.size; ++i) target[i] = to_float(source[i]);
  }
}

}  // namespace
}  // namespace hexane::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::device {

HWY_EXPORT(write_rows);
HWY_EXPORT(read_rows);
HWY_EXPORT(narrow_rows);
HWY_EXPORT(widen_rows);

namespace {

std::string text(std::span<const int64_t> numbers) {
  std::string result = "[";
  for (const int64_t number : numbers) result += (result.size() > 1 ? ", " : "") + std::to_string(number);
  return result + "]";
}

// The axes of a copy between a surface and an array: extents, and strides in bytes on the packed and on the surface's
// side. Axes that have no gaps on either side are merged.
struct Walk {
  std::vector<int64_t> shape;
  std::vector<int64_t> packed;
  std::vector<int64_t> strided;
};

Walk walk(const Layout& layout, Channels channels, int64_t packed_item) {
  Walk result;
  std::vector<int64_t> shape = layout.shape;
  if (shape.size() > 1) shape[1] = channels.count;
  int64_t packed = packed_item;
  for (size_t axis = shape.size(); axis-- > 0;) {
    const int64_t strided = layout.strides[axis];
    if (shape[axis] != 1) {
      if (!result.shape.empty() && result.packed.back() * result.shape.back() == packed &&
          result.strided.back() * result.shape.back() == strided) {
        result.shape.back() *= shape[axis];
      } else {
        result.shape.push_back(shape[axis]);
        result.packed.push_back(packed);
        result.strided.push_back(strided);
      }
    }
    packed *= shape[axis];
  }
  return result;  // innermost first
}

void check(const Surface& surface, const Layout& layout, Channels channels, DType dtype) {
  check_channels(layout, channels, dtype);
  if (layout.bytes() > surface.bytes())
    fail("surface", "got ", surface.bytes(), " bytes, need ", layout.bytes(), " for ", text(layout.shape));
}

// Calls rows(rows, offset in packed, offset in the surface) for all rows of the channels.
template <typename Function>
void each_rows(const Layout& layout, Channels channels, DType dtype, Function rows) {
  const int64_t packed_item = info(dtype).bits / 8;
  Walk way = walk(layout, channels, packed_item);
  for (const int64_t extent : way.shape)
    if (extent == 0) return;
  const bool dense = !way.shape.empty() && way.strided[0] == layout.item_bytes();
  Rows block{1, dense ? way.shape[0] : 1, 0, 0};
  size_t outer = dense ? 1 : 0;
  if (outer < way.shape.size()) {
    block.count = way.shape[outer], block.packed = way.packed[outer], block.strided = way.strided[outer];
    ++outer;
  }
  int64_t start = layout.shape.size() > 1 ? channels.first * layout.strides[1] : 0, packed = 0;
  std::vector<int64_t> index(way.shape.size());
  for (;;) {
    rows(block, packed, start);
    size_t axis = outer;
    for (; axis < way.shape.size(); ++axis) {
      packed += way.packed[axis], start += way.strided[axis];
      if (++index[axis] < way.shape[axis]) break;
      packed -= way.packed[axis] * way.shape[axis], start -= way.strided[axis] * way.shape[axis];
      index[axis] = 0;
    }
    if (axis >= way.shape.size()) return;
  }
}

}  // namespace

void Layout::check() const {
  if (info(dtype).bits % 8) fail("surface", "dtype: got ", info(dtype).name, ", need one of whole bytes");
  if (shape.size() != strides.size() || shape.size() > kMaxRank)
    fail("surface", "got the shape ", text(shape), " and the strides ", text(strides),
         ", need one stride for each of at most ", kMaxRank, " axes");
  int64_t least = item_bytes();  // least value of the next stride
  for (size_t axis = shape.size(); axis-- > 0;) {
    if (shape[axis] < 0) fail("surface", "shape: got ", text(shape), ", need no extent below 0");
    if (strides[axis] < 0 || strides[axis] % item_bytes() || (shape[axis] > 1 && strides[axis] < least))
      fail("surface", "strides: got ", text(strides), " for ", text(shape), " of ", info(dtype).name,
           ", need multiples of ", item_bytes(), " that keep elements apart and in order");
    if (shape[axis] <= 1) continue;
    if (strides[axis] > static_cast<int64_t>(kMaxBytes) / shape[axis])
      fail("surface", "got the shape ", text(shape), " with the strides ", text(strides), ", need at most ", kMaxBytes,
           " bytes");
    least = strides[axis] * shape[axis];
  }
}

uint64_t Layout::bytes() const {
  uint64_t last = static_cast<uint64_t>(item_bytes());
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == 0) return 0;
    last = std::max(last, static_cast<uint64_t>(shape[axis] * strides[axis]));
  }
  return last;
}

Layout layout_in_rows(DType dtype, std::span<const int64_t> shape, int64_t row_alignment) {
  Layout layout{dtype, {shape.begin(), shape.end()}, std::vector<int64_t>(shape.size())};
  const int64_t item = layout.item_bytes();
  if (row_alignment < 1 || row_alignment > int64_t{1} << 20 || (item && row_alignment % item))
    fail("surface", "row alignment: got ", row_alignment, ", need a multiple of ", item, ", at most a MiB");
  int64_t stride = item;
  for (size_t axis = shape.size(); axis-- > 0;) {
    layout.strides[axis] = stride;
    const int64_t extent = std::max<int64_t>(shape[axis], 1);
    if (stride > static_cast<int64_t>(kMaxBytes) / extent)
      fail("surface", "got the shape ", text(shape), ", need at most ", kMaxBytes, " bytes");
    stride *= extent;
    if (axis + 1 == shape.size()) stride = (stride + row_alignment - 1) / row_alignment * row_alignment;
  }
  layout.check();
  return layout;
}

Channels all_channels(const Layout& layout) { return {0, layout.shape.size() > 1 ? layout.shape[1] : 1}; }

void check_channels(const Layout& layout, Channels channels, DType dtype) {
  const Channels all = all_channels(layout);
  if (channels.first < 0 || channels.count < 0 || channels.first > all.count - channels.count)
    fail("surface", "channels: got ", channels.count, " from ", channels.first, " on, need some of ", all.count);
  if (dtype != layout.dtype && !(dtype == DType::kFp32 && layout.dtype == DType::kFp16))
    fail("surface", "dtype: got ", info(dtype).name, " for a surface of ", info(layout.dtype).name,
         ", need the same, or fp32 for fp16");
}

void write(const Surface& surface, const Layout& layout, Channels channels, DType dtype, const std::byte* packed) {
  check(surface, layout, channels, dtype);
  const Surface::Access access(surface, false);
  each_rows(layout, channels, dtype, [&](Rows rows, int64_t from, int64_t to) {
    if (dtype != layout.dtype) return HWY_DYNAMIC_DISPATCH(narrow_rows)(rows, packed + from, surface.data() + to);
    rows.size *= layout.item_bytes();
    HWY_DYNAMIC_DISPATCH(write_rows)(rows, packed + from, surface.data() + to);
  });
}

void read(const Surface& surface, const Layout& layout, Channels channels, DType dtype, std::byte* packed) {
  check(surface, layout, channels, dtype);
  const Surface::Access access(surface, true);
  each_rows(layout, channels, dtype, [&](Rows rows, int64_t to, int64_t from) {
    if (dtype != layout.dtype) return HWY_DYNAMIC_DISPATCH(widen_rows)(rows, surface.data() + from, packed + to);
    rows.size *= layout.item_bytes();
    HWY_DYNAMIC_DISPATCH(read_rows)(rows, surface.data() + from, packed + to);
  });
}

}  // namespace hexane::device
#endif
