// Provides the input rows of a convolution: in place, or converted and padded in scratch.
#include <algorithm>
#include <cstring>

#include "cpu/spatial/conv.h"

namespace hexane::cpu {
namespace {

// Converts adjacent pixels with an odd number of channels to pairs. The pixels are first converted to the end of the
// destination, then moved to their places.
void convert_odd(const ConvState& s, const std::byte* from, DType dtype, int64_t pixels, float* to) {
  const int64_t numbers = pixels * s.in_c, size = s.pixel_floats * 4;
  float* end = to + pixels * s.pixel_floats - s.arithmetic->items(numbers);
  s.arithmetic->to_floats(from, dtype, numbers, end);
  auto* place = reinterpret_cast<std::byte*>(to);
  const auto* source = reinterpret_cast<const std::byte*>(end);
  for (int64_t pixel = 0; pixel < pixels; ++pixel, place += size, source += size - 2) {
    std::memmove(place, source, size - 2);
    std::memset(place + size - 2, 0, 2);
  }
}

}  // namespace

void fill_rows(const ConvState& s, const Tensor& x, int64_t n, int64_t first, int64_t count, const float** table,
               float* copies) {
  const int64_t top = first * s.stride_h - s.pad_top;
  const int64_t item = item_bytes(x);
  const auto input_row = [&](int64_t row) { return x.data + n * s.x_n + x.kept_row(row) * s.x_h; };
  std::fill(table, table + s.num_rows, nullptr);
  for (int64_t y = 0; y < count; ++y)
    for (int64_t tap = 0; tap < s.kernel_h; ++tap) {
      const int64_t i = y * s.stride_h + tap * s.dilation_h, row = top + i;
      const bool outside = row < 0 || row >= s.in_h;
      if (table[i] || (outside && !s.margins)) continue;
      if (s.in_place) {
        table[i] = reinterpret_cast<const float*>(input_row(row));
        continue;
      }
      float* to = copies;
      copies += s.row_floats;
      table[i] = to;
      if (outside || !s.in_c) {  // a row without channels has no pixels to count
        std::fill(to, to + s.row_floats, 0.0f);
        continue;
      }
      const std::byte* from = input_row(row);
      const int64_t width = s.row_floats / s.pixel_floats, left = s.margins ? std::min(s.pad_left, width) : 0;
      const int64_t copied = std::min(s.in_w, width - left);
      std::fill(to, to + left * s.pixel_floats, 0.0f);
      to += left * s.pixel_floats;
      if (s.x_w == s.in_c * item && s.in_c % s.arithmetic->terms == 0) {
        s.arithmetic->to_floats(from, x.dtype, copied * s.in_c, to);
      } else if (s.x_w == s.in_c * item) {
        convert_odd(s, from, x.dtype, copied, to);
      } else {
        for (int64_t pixel = 0; pixel < copied; ++pixel)
          s.arithmetic->to_floats(from + pixel * s.x_w, x.dtype, s.in_c, to + pixel * s.pixel_floats);
      }
      std::fill(to + copied * s.pixel_floats, to + (width - left) * s.pixel_floats, 0.0f);
    }
}

}  // namespace hexane::cpu
