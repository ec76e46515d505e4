// Every implementation of the integer tiles that this machine can run gives the sums of a plain loop, and bytes as the
// formula says.
#include "cpu/quantized/dot.h"

#include <hwy/highway.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "check.h"

using namespace hexane;
using namespace hexane::cpu;

namespace {

bool has_fma = true;
std::mt19937 random_bits(1);
uint8_t byte() { return static_cast<uint8_t>(random_bits() >> 7); }
template <class T>
std::vector<T> bytes(int64_t n) {
  std::vector<T> result(static_cast<size_t>(n));
  for (T& value : result) value = static_cast<T>(byte());
  return result;
}

int32_t left_value(const DotOps& ops, uint8_t value) { return ops.signed_left ? static_cast<int8_t>(value) : value; }

DotOutput raw_output() {
  DotOutput output{};
  output.dtype = DType::kInt32;
  output.in_bounds = true;
  return output;
}

DotOutput byte_output(DType dtype) {
  DotOutput output{};
  output.dtype = dtype;
  output.zero = 5;
  output.low = dtype == DType::kInt8 ? -100 : 9;
  output.high = output.low + 210;
  output.in_bounds = output.in_steps = true;
  return output;
}

int stored(const DotOutput& o, int32_t sum, float scale, float rest, float bias) {
  const auto f = static_cast<float>(sum);
  const float steps = std::nearbyint(std::fma(f, scale, std::fma(f, rest, bias)));
  return static_cast<int>(std::min(o.high, std::max(o.low, steps + o.zero)));
}

// The values that tiles need for each column, padded to whole vectors.
struct Columns {
  std::vector<int32_t> start, row_factor;
  std::vector<float> scale, rest, bias;

  explicit Columns(int64_t n) : start(n + 64), row_factor(n + 64), scale(n + 64), rest(n + 64), bias(n + 64) {
    for (int64_t i = 0; i < n; ++i) {
      start[i] = byte() * 1000;
      row_factor[i] = byte() - 128;
      scale[i] = static_cast<float>(byte()) / 50000;
      rest[i] = scale[i] / (1 << 26);
      bias[i] = static_cast<float>(byte()) - 128;
    }
  }
  void point(DotTile& tile, const DotOutput& output) const {
    tile.start = start.data();
    tile.scale = scale.data();
    tile.scale_rest = rest.data();
    tile.bias = bias.data();
    tile.output = &output;
  }
};

void tile_is_a_matrix_product(const DotOps& ops, int rows, int panels, int64_t segments, int64_t length, bool factor,
                              bool slack) {
  const int64_t columns = panels * 16 - 5, segment_bytes = ceil_div(length, 4) * kDotBytes;
  const std::vector<uint8_t> left = bytes<uint8_t>(rows * segments * length + 3);
  std::vector<int8_t> right(static_cast<size_t>(panels * segments * segment_bytes));
  const Columns column_data(columns);
  std::vector<int32_t> want(static_cast<size_t>(rows * columns)), got(want.size());
  for (int64_t n = 0; n < columns; ++n)
    for (int64_t m = 0; m < rows; ++m) want[m * columns + n] = column_data.start[n];
  for (int64_t s = 0; s < segments; ++s)
    for (int64_t k = 0; k < length; ++k)
      for (int64_t n = 0; n < columns; ++n) {
        const auto value = static_cast<int8_t>(byte());
        right[(n / 16 * segments + s) * segment_bytes + k / 4 * kDotBytes + n % 16 * 4 + k % 4] = value;
        for (int64_t m = 0; m < rows; ++m)
          want[m * columns + n] += left_value(ops, left[(m * segments + s) * length + k]) *
                                   (value - (factor ? column_data.row_factor[n] : 0));
      }
  const uint8_t* a[2 * kTileRows];
  for (int64_t s = 0; s < segments; ++s)
    for (int64_t m = 0; m < rows; ++m) a[s * kTileRows + m] = &left[(m * segments + s) * length];
  DotTile tile{};
  tile.a = a;
  tile.num_segments = segments;
  tile.length = length;
  tile.has_slack = slack;
  tile.panels = reinterpret_cast<const std::byte*>(right.data());
  tile.panel_bytes = segments * segment_bytes;
  tile.rows = rows;
  tile.num_panels = panels;
  tile.num_columns = columns;
  const DotOutput raw = raw_output();
  column_data.point(tile, raw);
  if (factor) tile.row_factor = column_data.row_factor.data();
  for (int64_t m = 0; m < rows; ++m) tile.out[m] = reinterpret_cast<std::byte*>(&got[m * columns]);
  ops.tile(tile);
  CHECK(got == want);

  for (const DType dtype : {DType::kInt8, DType::kUint8}) {
    const DotOutput output = byte_output(dtype);
    std::vector<uint8_t> bytes(want.size());
    for (int64_t m = 0; m < rows; ++m) tile.out[m] = reinterpret_cast<std::byte*>(&bytes[m * columns]);
    tile.output = &output;
    ops.tile(tile);
    for (size_t i = 0; i < want.size(); ++i) {
      const size_t n = i % columns;
      const int value = dtype == DType::kInt8 ? static_cast<int8_t>(bytes[i]) : bytes[i];
      const int far = value - stored(output, want[i], column_data.scale[n], column_data.rest[n], column_data.bias[n]);
      CHECK(has_fma ? far == 0 : std::abs(far) <= 1);
    }
  }
}

void depthwise_is_a_sum_over_taps(const DotOps& ops, int64_t channels, const DepthwiseDot& w, int rows) {
  const int64_t window = (rows - 1) * w.stride_w + (w.kernel_w - 1) * w.dilation_w + 1, height = w.quads * 4;
  const int64_t panels = ceil_div(channels, 16) + 1;
  const std::vector<uint8_t> image = bytes<uint8_t>(window * height * channels);
  const std::vector<int8_t> weights = bytes<int8_t>(panels * w.kernel_w * w.quads * w.planes * kDotBytes);
  const Columns column_data(channels);
  std::vector<const uint8_t*> pixels;
  for (int64_t i = 0; i < window * height; ++i) pixels.push_back(&image[i * channels]);
  std::vector<int32_t> want, got(static_cast<size_t>(rows * channels));
  const int64_t panel_bytes = w.kernel_w * w.quads * w.planes * kDotBytes;
  for (int64_t m = 0; m < rows; ++m)
    for (int64_t c = 0; c < channels; ++c) {
      int32_t sum = column_data.start[c];
      for (int64_t kw = 0; kw < w.kernel_w; ++kw)
        for (int64_t kh = 0; kh < height; ++kh)
          for (int64_t plane = 0; plane < w.planes; ++plane) {
            const int64_t pixel = (m * w.stride_w + kw * w.dilation_w) * height + kh;
            const uint8_t x = static_cast<uint8_t>(image[pixel * channels + c] ^ (w.flip ? 0x80 : 0));
            const int64_t at = c / 16 * panel_bytes + ((kw * w.quads + kh / 4) * w.planes + plane) * kDotBytes;
            sum += left_value(ops, x) * weights[at + c % 16 * 4 + kh % 4];
          }
      want.push_back(sum);
    }
  DotTile tile{};
  tile.a = pixels.data();
  tile.panels = reinterpret_cast<const std::byte*>(weights.data());
  tile.panel_bytes = panel_bytes;
  tile.rows = rows;
  tile.num_columns = channels;
  const DotOutput raw = raw_output();
  column_data.point(tile, raw);
  for (int64_t m = 0; m < rows; ++m) tile.out[m] = reinterpret_cast<std::byte*>(&got[m * channels]);
  ops.depthwise(w, tile);
  CHECK(got == want);
}

void check_all(const DotOps& ops) {
  for (int rows = 1; rows <= kTileRows; ++rows)
    for (int panels = 1; panels <= kTilePanels; ++panels)
      for (const int64_t length : {1, 3, 4, 7, 64, 131})
        for (const bool factor : {false, true})
          tile_is_a_matrix_product(ops, rows, panels, 1 + length % 2, length, factor, panels % 2);
  for (const int64_t channels : {1, 15, 16, 17, 31, 32, 33, 48, 49, 63, 64, 65, 96, 100, 131})
    for (const bool flip : {false, true})
      for (const int rows : {1, ops.depthwise_pixels})
        for (const DepthwiseDot& w :
             {DepthwiseDot{1, 3, 1, 1, 1, flip}, DepthwiseDot{1, 3, 2, 1, 1, flip}, DepthwiseDot{1, 3, 1, 2, 1, flip},
              DepthwiseDot{2, 5, 2, 1, 1, flip}, DepthwiseDot{1, 3, 1, 1, 3, flip}, DepthwiseDot{3, 1, 3, 1, 1, flip}})
          depthwise_is_a_sum_over_taps(ops, channels, w, rows);
  for (const int64_t n : {0, 1, 15, 64, 100}) {
    const std::vector<uint8_t> from = bytes<uint8_t>(n);
    std::vector<uint8_t> to(from.size()), want;
    for (const uint8_t value : from) want.push_back(value ^ 0x80);
    ops.flip(from.data(), n, to.data());
    CHECK(to == want);
  }
}

}  // namespace

int main() {
  const int64_t supported = hwy::SupportedTargets() & HWY_TARGETS;
  std::set<const DotOps*> checked;
  for (int64_t rest = supported; rest != 0; rest &= rest - 1) {
    hwy::SetSupportedTargetsForTest(rest & -rest);
    hwy::GetChosenTarget().Update(rest & -rest);
    has_fma = (rest & -rest) != HWY_SSE4;
    for (const bool extensions : {false, true}) {
      const DotOps& ops = dot_ops(extensions);
      if (!checked.insert(&ops).second) continue;
      std::printf("%s %s\n", hwy::TargetName(rest & -rest), ops.name);
      check_all(ops);
    }
  }
  return checks_failed();
}
