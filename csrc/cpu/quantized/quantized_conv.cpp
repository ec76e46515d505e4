// quantized_conv: conv of 8-bit integers, [N, H, W, C] -> [N, OH, OW, O], summed in int32 and scaled. Padding has the
// value of x's zero point, a real 0. Geometry and tiles as in conv.cpp, panels as in dot.h.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "cpu/quantized/quantized.h"
#include "cpu/spatial/conv.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

struct QuantizedConvAttrs {
  ConvWindow window;
  QuantizedAttrs quantized;
};
static_assert(sizeof(QuantizedConvAttrs) == 8 * (3 * 9 + 1 + 19));

struct Q31ConvAttrs {
  ConvWindow window;
  Q31Attrs quantized;
};

// Bytes of copied input rows: a fraction of a core's second-level cache, or of the first-level cache if each row is
// used once.
constexpr int64_t kChunkBytes = 256 << 10, kSmallChunkBytes = 24 << 10;
constexpr int64_t kShortRow = 64;  // bytes; shorter rows are filled with padding as a whole before the copy

template <class Attrs>
constexpr const char* kNameOf = std::is_same_v<Attrs, Q31ConvAttrs> ? "q31_conv" : "quantized_conv";

struct QuantizedConvState : ConvGeometry {
  QuantizedState q;
  ExtraImages extra;
  bool in_place;                             // Input rows are read in place.
  int64_t pixel_bytes, row_bytes;            // Bytes of a pixel and of a row, read in place or copied.
  int64_t chunk_rows, num_rows, num_copies;  // Explained in conv.h.
  int64_t num_segments, length;
  int64_t panel_bytes, group_bytes;
  DepthwiseDot window;
  int64_t depthwise_width;  // output pixels of a depthwise tile
  bool constant_weights;
  Block packed;  // panels, then the sums of their columns
  Memory columns;
};

int64_t panels_bytes(const QuantizedConvState& s) { return s.group_bytes * (s.depthwise ? 1 : s.groups); }
int64_t packed_bytes(const QuantizedConvState& s) { return panels_bytes(s) + 4 * s.q.padded_columns; }

// Packs each weight minus its zero point as a sum of signed bytes.
void pack_depthwise(const QuantizedConvState& s, const Call& call, std::byte* to, uint32_t* sums) {
  const Tensor& w = call.inputs[1];
  const int64_t w_stride = w.rank == 3 ? 0 : w.strides[3];
  for (int64_t c = 0; c < s.out_c; ++c) {
    const int32_t zero = right_zero(s.q, call, c) + (s.q.flip_y ? 128 : 0);
    std::byte* panel = to + c / kPanelLanes * s.panel_bytes + c % kPanelLanes * 4;
    for (int64_t kw = 0; kw < s.kernel_w; ++kw)
      for (int64_t kh = 0; kh < s.kernel_h; ++kh) {
        const auto bits = w.data[c * w.strides[0] + kh * w.strides[2] + kw * w_stride];
        int32_t value = (s.q.flip_y ? static_cast<int32_t>(bits) : static_cast<int8_t>(bits)) - zero;
        sums[c] += static_cast<uint32_t>(value);
        std::byte* at = panel + (kw * s.window.quads + kh / 4) * s.window.planes * kDotBytes + kh % 4;
        for (int64_t plane = 0; plane < s.window.planes; ++plane, at += kDotBytes) {
          const int32_t part = std::clamp(value, -128, 127);
          *at = static_cast<std::byte>(part);
          value -= part;
        }
      }
  }
}

// Packs [O, I, KH, KW] to panels of output channels for each group. A segment is one row or one tap of the kernel.
void pack_groups(const QuantizedConvState& s, const Tensor& w, std::byte* to, uint32_t* sums) {
  const auto flip = static_cast<std::byte>(s.q.flip_y ? 0x80 : 0);
  const int64_t w_stride = w.rank == 3 ? 0 : w.strides[3];
  const int64_t segment_bytes = ceil_div(s.length, 4) * kDotBytes,
                taps_in_segment = s.length / std::max<int64_t>(s.group_in, 1);
  for (int64_t o = 0; o < s.out_c; ++o) {
    const int64_t g = o / s.group_out, column = o % s.group_out;
    std::byte* panel = to + g * s.group_bytes + column / kPanelLanes * s.panel_bytes;
    uint32_t& sum = sums[g * ceil_div(s.group_out, kPanelLanes) * kPanelLanes + column];
    for (int64_t kh = 0; kh < s.kernel_h; ++kh)
      for (int64_t kw = 0; kw < s.kernel_w && s.group_in > 0; ++kw) {
        const int64_t tap = kh * s.kernel_w + kw;
        std::byte* segment = panel + tap / taps_in_segment * segment_bytes;
        const std::byte* from = w.data + o * w.strides[0] + kh * w.strides[2] + kw * w_stride;
        for (int64_t c = 0; c < s.group_in; ++c) {
          const std::byte value = from[c * w.strides[1]] ^ flip;
          panel_byte(segment, tap % taps_in_segment * s.group_in + c, column % kPanelLanes) = value;
          sum += static_cast<uint32_t>(static_cast<int8_t>(value));
        }
      }
  }
}

void pack_weights(const QuantizedConvState& s, const Call& call, std::byte* to) {
  std::memset(to, 0, static_cast<size_t>(packed_bytes(s)));
  auto* sums = reinterpret_cast<uint32_t*>(to + panels_bytes(s));
  if (s.depthwise)
    pack_depthwise(s, call, to, sums);
  else
    pack_groups(s, call.inputs[1], to, sums);
}

void fill(const Call& call, const QuantizedConvState& s, const std::byte* packed, std::byte* to) {
  const auto* sums = reinterpret_cast<const int32_t*>(packed + panels_bytes(s));
  fill_columns(s.q, call, sums, 1, s.kernel_h * s.kernel_w * s.group_in, to);
}

// Sets the number of output rows in a chunk, and the scratch for their input rows.
void set_chunks(const char* kernel, QuantizedConvState& s) {
  const int64_t span_w = std::max<int64_t>(s.out_w - 1, 0) * s.stride_w + (s.kernel_w - 1) * s.dilation_w + 1;
  s.pixel_bytes = s.in_place ? s.x_w : s.in_c;
  s.row_bytes = checked_product(kernel, {span_w, s.in_c});
  const int64_t reach = (s.kernel_h - 1) * s.dilation_h + 1;
  const bool once = s.kernel_h == 1 && s.group_in * s.out_c * s.kernel_w <= kInnerPanelBytes;
  const int64_t fit = (once ? kSmallChunkBytes : kChunkBytes) / std::max<int64_t>(s.row_bytes, 1);
  s.chunk_rows =
      s.in_place ? s.out_h : std::clamp<int64_t>((fit - reach) / s.stride_h + 1, 1, std::max<int64_t>(s.out_h, 1));
  s.num_rows = std::max<int64_t>(s.chunk_rows - 1, 0) * s.stride_h + reach;
  s.num_copies = s.in_place ? 0 : std::min(s.num_rows, s.chunk_rows * s.kernel_h);
  checked_product(kernel, {std::max<int64_t>(s.num_copies, 1), s.row_bytes});
}

// Returns the number of input pixels in a row that a depthwise tile reads.
int64_t window_pixels(const QuantizedConvState& s) {
  return (s.depthwise_width - 1) * s.stride_w + (s.kernel_w - 1) * s.dilation_w + 1;
}

void set_depthwise(const char* kernel, QuantizedConvState& s, const Call& call) {
  s.depthwise_width = s.out_w >= s.q.ops->depthwise_pixels ? s.q.ops->depthwise_pixels : 1;
  s.window = {ceil_div(s.kernel_h, 4), s.kernel_w, s.stride_w, s.dilation_w, 1, s.q.flip_x};
  s.q.has_row_factor = false;  // the zero points are already subtracted from the weights
  if (s.q.flip_y || (call.inputs.size() > 5 && call.inputs[5].present())) s.window.planes = 3;
  checked_product(kernel, {window_pixels(s), s.window.quads, 32});
}

template <class Attrs>
Prepared prepare(const Call& call) {
  const char* kernel = kNameOf<Attrs>;
  auto state = std::make_shared<QuantizedConvState>();
  QuantizedConvState& s = *state;
  const auto& attrs = call.attributes<Attrs>();
  set_quantized(kernel, s.q, call, attrs.quantized);
  set_geometry(kernel, s, call, attrs.window);
  const Tensor& w = call.inputs[1];
  s.extra.set(call, s.q.output.epilogue);
  const int64_t width = s.depthwise ? s.out_c : s.group_out, num_panels = ceil_div(width, kPanelLanes);
  set_columns(kernel, s.q, call, s.out_c, width);
  s.in_place = s.depthwise || (!s.padded && !s.q.flip_x);
  const int64_t taps = checked_product(kernel, {s.kernel_h, s.kernel_w});
  s.constant_weights = w.constant;
  if (s.depthwise) {
    set_depthwise(kernel, s, call);
    s.constant_weights &= s.window.planes == 1 || s.q.constant_columns;
    s.panel_bytes = checked_product(kernel, {s.kernel_w, s.window.quads, s.window.planes, kDotBytes});
    s.group_bytes = checked_product(kernel, {s.panel_bytes, num_panels + 1});  // tiles may read one panel past the end
    s.chunk_rows = s.out_h;
  } else {
    set_chunks(kernel, s);
    const bool joined = s.dilation_w == 1 && s.pixel_bytes == s.group_in;
    s.num_segments = joined ? s.kernel_h : taps;
    s.length = checked_product(kernel, {joined ? s.kernel_w : 1, s.group_in});
    s.panel_bytes = checked_product(kernel, {s.num_segments, ceil_div(s.length, 4), kDotBytes});
    s.group_bytes = checked_product(kernel, {s.panel_bytes, num_panels});
    checked_product(kernel, {std::max<int64_t>(s.group_bytes, 1), s.groups});
  }
  if (call.asks) return state;
  if (s.constant_weights) {
    Memory packed(packed_bytes(s), "packed weights");
    pack_weights(s, call, packed.data());
    s.packed = call.share(std::move(packed));
  }
  if (s.q.constant_columns) {
    s.columns = Memory(column_bytes(s.q, 1), "columns of weights");
    fill(call, s, s.packed->data(), s.columns.data());
  }
  return state;
}

void cuts(const Call& call, Cuts& cuts) { cut_image(call.state<QuantizedConvState>(), call, cuts); }

Box needs(const Call& call, int input, const Box& out) {
  const auto& s = call.state<QuantizedConvState>();
  return conv_needs(s, call, input, s.q.output.q31 ? kNumQ31Inputs : kNumQuantizedInputs, out);
}

int64_t cost(const Call& call) {
  const auto& s = call.state<QuantizedConvState>();
  return call.outputs[0].size() * s.kernel_h * s.kernel_w * s.group_in / (s.depthwise ? 30 : 150) + 100;
}

// Scratch of one thread: row table | pointers of a tile | a depthwise pixel of zeros | copied rows.
int64_t table_items(const QuantizedConvState& s) { return ceil_div(s.depthwise ? s.kernel_h : s.num_rows, 8) * 8; }
int64_t tile_items(const QuantizedConvState& s) {
  const int64_t items = s.depthwise ? window_pixels(s) * s.window.quads * 4 : s.num_segments * kTileRows;
  return ceil_div(items, 8) * 8;
}
int64_t zero_bytes(const QuantizedConvState& s) { return s.depthwise ? ceil_div(s.in_c, 64) * 64 : 0; }

int64_t scratch(const Call& call) {
  const auto& s = call.state<QuantizedConvState>();
  return 8 * (table_items(s) + tile_items(s)) + zero_bytes(s) + (s.depthwise ? 0 : s.num_copies * s.row_bytes + kSlack);
}

// Packed weights, then the constants of columns, each only if they depend on the call.
int64_t shared_scratch(const Call& call) {
  const auto& s = call.state<QuantizedConvState>();
  return (s.constant_weights ? 0 : packed_bytes(s)) + (s.q.constant_columns ? 0 : column_bytes(s.q, 1));
}

void begin(const Call& call, std::byte* shared) {
  const auto& s = call.state<QuantizedConvState>();
  const std::byte* packed = s.constant_weights ? s.packed->data() : shared;
  if (!s.constant_weights) {
    pack_weights(s, call, shared);
    shared += packed_bytes(s);
  }
  if (!s.q.constant_columns) fill(call, s, packed, shared);
}

// Fills the table with the input rows for output rows [first, first + count) of image n: in place, or copied with
// padding.
void fill_rows(const QuantizedConvState& s, const Tensor& x, uint8_t zero, int64_t n, int64_t first, int64_t count,
               const uint8_t** table, uint8_t* copies) {
  const int64_t top = first * s.stride_h - s.pad_top;
  if (s.in_place && s.kernel_h == 1) {  // a kernel of height 1 reads each row once
    for (int64_t y = 0; y < count * s.stride_h; y += s.stride_h)
      table[y] = reinterpret_cast<const uint8_t*>(x.data + n * s.x_n + x.kept_row(top + y) * s.x_h);
    return;
  }
  const int64_t spanned = (count - 1) * s.stride_h + (s.kernel_h - 1) * s.dilation_h + 1;
  std::fill(table, table + spanned, nullptr);
  const bool padded = !s.in_place && s.row_bytes <= kShortRow;
  if (padded) std::memset(copies, zero, static_cast<size_t>(std::min(spanned, count * s.kernel_h) * s.row_bytes));
  const auto copy = [&](const uint8_t* from, int64_t bytes, uint8_t* to) {
    if (s.q.flip_x)
      s.q.ops->flip(from, bytes, to);
    else
      std::memcpy(to, from, static_cast<size_t>(bytes));
  };
  for (int64_t y = 0; y < count; ++y)
    for (int64_t tap = 0; tap < s.kernel_h; ++tap) {
      const int64_t i = y * s.stride_h + tap * s.dilation_h, row = top + i;
      if (table[i]) continue;
      const auto* from = reinterpret_cast<const uint8_t*>(x.data + n * s.x_n + x.kept_row(row) * s.x_h);
      if (s.in_place) {
        table[i] = from;
        continue;
      }
      uint8_t* to = copies;
      copies += s.row_bytes;
      table[i] = to;
      if (row < 0 || row >= s.in_h || !s.in_c) {
        if (!padded) std::memset(to, zero, static_cast<size_t>(s.row_bytes));
        continue;
      }
      const int64_t width = s.row_bytes / s.in_c, left = std::min(s.pad_left, width);
      const int64_t copied = std::min(s.in_w, width - left);
      if (!padded) {
        std::memset(to, zero, static_cast<size_t>(left * s.in_c));
        std::memset(to + (left + copied) * s.in_c, zero, static_cast<size_t>((width - left - copied) * s.in_c));
      }
      to += left * s.in_c;
      if (s.x_w == s.in_c)
        copy(from, copied * s.in_c, to);
      else
        for (int64_t pixel = 0; pixel < copied; ++pixel) copy(from + pixel * s.x_w, s.in_c, to + pixel * s.in_c);
    }
}

// Finds the rows of a depthwise window from row `top` of image n on; null for rows outside of the image.
void find_window(const QuantizedConvState& s, const Tensor& x, int64_t n, int64_t top, const uint8_t** table) {
  const auto* image = reinterpret_cast<const uint8_t*>(x.data + n * s.x_n);
  int64_t kept = -1;  // place of the previous row; in a ring only the first row needs a division
  for (int64_t kh = 0; kh < s.kernel_h; ++kh) {
    const int64_t row = top + kh * s.dilation_h;
    table[kh] = nullptr;
    if (row < 0 || row >= s.in_h) continue;
    kept = kept < 0 ? x.kept_row(row) : kept + s.dilation_h;
    if (x.ring && kept >= x.ring) kept %= x.ring;
    table[kh] = image + kept * s.x_h;
  }
}

// Computes output rows [first, first + count) of image n. `place(tile, row, column)` locates the tile's first output
// pixel.
template <class Place>
void multiply_depthwise(const QuantizedConvState& s, const Tensor& x, int64_t n, int64_t first, int64_t count,
                        const uint8_t** table, const uint8_t** pointers, const uint8_t* zeros, DotTile& tile,
                        Place&& place) {
  const int64_t width = s.depthwise_width, num_tiles = ceil_div(s.out_w, width), pixels = window_pixels(s),
                depth = s.window.quads * 4;
  tile.rows = static_cast<int>(width);
  for (int64_t kh = s.kernel_h; kh < depth; ++kh)  // padding taps of the last quad
    for (int64_t column = 0; column < pixels; ++column) pointers[column * depth + kh] = zeros;
  for (int64_t oy = first; oy < first + count; ++oy) {
    find_window(s, x, n, oy * s.stride_h - s.pad_top, table);
    for (int64_t i = 0; i < num_tiles; ++i) {
      const int64_t ox = std::min(i * width, s.out_w - width);  // the last tile of a row starts early to be whole
      const int64_t left = ox * s.stride_w - s.pad_left;
      const int64_t begin = std::clamp<int64_t>(-left, 0, pixels), end = std::clamp(s.in_w - left, begin, pixels);
      for (int64_t kh = 0; kh < s.kernel_h; ++kh) {
        const uint8_t** to = pointers + kh;
        const bool inside = table[kh] != nullptr;
        for (int64_t column = 0; column < (inside ? begin : pixels); ++column) to[column * depth] = zeros;
        if (!inside) continue;
        const uint8_t* from = table[kh] + (left + begin) * s.x_w;
        for (int64_t column = begin; column < end; ++column, from += s.x_w) to[column * depth] = from;
        for (int64_t column = end; column < pixels; ++column) to[column * depth] = zeros;
      }
      place(tile, oy, ox);
      s.q.ops->depthwise(s.window, tile);
    }
  }
}

void run(const Call& call, int axis, Range range, std::byte* scratch, const std::byte* shared) {
  const auto& s = call.state<QuantizedConvState>();
  const Tensor &x = call.inputs[0], &out = call.outputs[0];
  const Range images = axis == 0 ? range : Range{0, s.batch}, rows = axis == 1 ? range : Range{0, s.out_h},
              channels = axis == out.rank - 1 ? range : Range{0, s.depthwise ? s.out_c : s.group_out};
  if (out.size() == 0) return;
  const int64_t item = item_bytes(out);
  const ResolvedEpilogue& epilogue = s.q.output.epilogue;
  auto** table = reinterpret_cast<const uint8_t**>(scratch);
  const uint8_t** pointers = table + table_items(s);
  auto* zeros = reinterpret_cast<uint8_t*>(pointers + tile_items(s));
  uint8_t* copies = zeros + zero_bytes(s);
  const uint8_t zero = left_zero_byte(s.q, call);
  if (s.depthwise) std::memset(zeros, s.q.flip_x ? zero ^ 0x80 : zero, static_cast<size_t>(zero_bytes(s)));
  const std::byte* packed = s.constant_weights ? s.packed->data() : shared;
  const std::byte* columns =
      s.q.constant_columns ? s.columns.data() : shared + (s.constant_weights ? 0 : packed_bytes(s));

  DotTile tile;  // the addresses of rows are set for each tile
  tile.rows = tile.num_panels = 0;
  tile.column = 0;
  tile.a = pointers;
  tile.num_segments = s.num_segments;
  tile.length = s.length;
  tile.has_slack = !s.in_place;
  tile.panel_bytes = s.panel_bytes;
  tile.output = &s.q.output;
  tile.num_columns = s.depthwise ? channels.end : s.group_out;
  // Sets the tile's rows i to i + run - 1 to output pixels from (oy, ox) on.
  const auto place = [&](DotTile& t, int i, int run, int64_t n, int64_t oy, int64_t ox, int64_t channel) {
    std::byte* to = out.data + n * s.out_n + oy * s.out_row + ox * s.out_pixel + channel * item;
    for (int r = 0; r < run; ++r) t.out[i + r] = to + r * s.out_pixel;
    for (int e = 0; e < epilogue.num_extra; ++e) {
      const std::byte* from = s.extra.at(call, epilogue, e, n, oy, ox) + channel * item;
      for (int r = 0; r < run; ++r) t.extra[e][i + r] = from + r * s.extra.pixel[e];
    }
  };
  if (s.depthwise) {
    point_to_columns(s.q, columns, 1, 0, 0, tile);
    tile.panels = packed + channels.begin / kPanelLanes * s.panel_bytes;
    tile.column = channels.begin;
    for (int64_t n = images.begin; n < images.end; ++n)
      multiply_depthwise(s, x, n, rows.begin, rows.end - rows.begin, table, pointers, zeros, tile,
                         [&](DotTile& t, int64_t oy, int64_t ox) { place(t, 0, t.rows, n, oy, ox, 0); });
    return;
  }
  const int64_t taps_per_row = s.num_segments / s.kernel_h, pixel_step = s.stride_w * s.pixel_bytes;
  for (int64_t n = images.begin; n < images.end; ++n)
    for (int64_t first = rows.begin; first < rows.end; first += s.chunk_rows) {
      const int64_t count = std::min(s.chunk_rows, rows.end - first);
      fill_rows(s, x, zero, n, first, count, table, copies);
      for (int64_t g = 0; g < s.groups; ++g) {
        int64_t oy = 0, ox = 0;
        const auto locate = [&](int64_t pixel, int num_pixels, DotTile& t) {
          if (pixel == 0) oy = ox = 0;  // tiles are visited in order
          for (int i = 0; i < num_pixels;) {
            const int run = static_cast<int>(std::min<int64_t>(num_pixels - i, s.out_w - ox));
            const uint8_t** a = pointers + i;
            for (int64_t kh = 0; kh < s.kernel_h; ++kh) {
              const uint8_t* tap = table[oy * s.stride_h + kh * s.dilation_h] + ox * pixel_step + g * s.group_in;
              for (int64_t kw = 0; kw < taps_per_row; ++kw, a += kTileRows, tap += s.dilation_w * s.pixel_bytes)
                for (int r = 0; r < run; ++r) a[r] = tap + r * pixel_step;
            }
            place(t, i, run, n, first + oy, ox, g * s.group_out);
            i += run;
            ox += run;
            if (ox == s.out_w) {
              ox = 0;
              ++oy;
            }
          }
        };
        point_to_columns(s.q, columns, 1, 0, g * ceil_div(s.group_out, kPanelLanes) * kPanelLanes, tile);
        multiply_tiles(tile, s.q.ops->tile, packed + g * s.group_bytes, count * s.out_w, channels, locate);
      }
    }
}

template <class Attrs>
constexpr Kernel row(const char* dtypes, const char* layout) {
  return {
      .name = kNameOf<Attrs>,
      .dtypes = dtypes,
      .attrs = layout,
      .attrs_bytes = sizeof(Attrs),
      .accepts = "rows",
      .prepare = prepare<Attrs>,
      .cuts = cuts,
      .needs = needs,
      .cost = cost,
      .scratch = scratch,
      .shared_scratch = shared_scratch,
      .begin = begin,
      .run = run,
      .reads_ring = true,
  };
}

constexpr const char* kLayout = "strides:L dilations:L pads:L groups:i output_scale:f output_zero:i epilogue:E";
constexpr const char* kQ31Layout = "strides:L dilations:L pads:L groups:i output_zero:i low:i high:i";

const Kernel kTable[] = {
    row<QuantizedConvAttrs>("8b,8b,*...->int8", kLayout),
    row<QuantizedConvAttrs>("8b,8b,*...->uint8", kLayout),
    row<QuantizedConvAttrs>("8b,8b,*...->int32", kLayout),
    row<QuantizedConvAttrs>("8b,8b,*...->fp32", kLayout),
    row<Q31ConvAttrs>("8b,8b,int32,int32,8b,8b,int8->int8", kQ31Layout),
    row<Q31ConvAttrs>("8b,8b,int32,int32,8b,8b,int8->uint8", kQ31Layout),
};

}  // namespace

std::span<const Kernel> quantized_conv_table() { return kTable; }

}  // namespace hexane::cpu
