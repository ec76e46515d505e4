// conv: [N, H, W, C] -> [N, OH, OW, O] with weights [O, C / groups, KH, KW], bias and epilogue. Convolutions over one
// axis have no H and KH.
//
// A convolution of one group is an implicit matrix product: rows are output pixels, k runs over (kh, kw, c), columns
// are output channels. Depthwise convolutions, and convolutions with groups of four channels, have a kernel of their
// own (depthwise.cpp). Other grouped convolutions are one product per group.
//
// conv_stored.cpp has convolutions whose weights are stored as two operands.
#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/engine/engine_tile.h"
#include "cpu/engine/winograd.h"
#include "cpu/matmul/bf16.h"
#include "cpu/region.h"
#include "cpu/spatial/conv.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

struct ConvAttrs {
  ConvWindow window;
  Epilogue epilogue;
};
static_assert(sizeof(ConvAttrs) == 8 * (3 * 9 + 1 + 17));

constexpr const char* kName = "conv";
// Bytes of copied input rows: a fraction of a core's second-level cache, or of the first-level cache if each row is
// used once.
constexpr int64_t kChunkBytes = 256 << 10, kSmallChunkBytes = 24 << 10;

// Returns the bytes of packed weights of all groups. With Winograd they are packed twice: for even and for odd columns.
// A sparse weight is read in place, so it needs only the starts of its groups of numbers.
int64_t weight_bytes(const ConvState& s) {
  if (s.sparse) return s.sparse_w.num_groups() * 8;
  if (s.encoded) return s.group_bytes + number_bytes(s.encoded_w);
  return s.group_bytes * (s.depthwise ? 1 : s.groups) * (s.winograd ? 2 : 1);
}

// A view of the weights of some output channels: [count, I, KH, KW], strides in bytes.
struct Filters {
  const std::byte* from;
  DType dtype;
  int64_t count, strides[4];
};

// Winograd's factors of some output channels, for even and for odd columns.
struct Factors {
  std::vector<uint16_t> even, odd;
  Factors(const ConvState& s, const Filters& w)
      : even(w.count * s.group_in * s.kernel_h * s.kernel_w), odd(even.size()) {
    const int64_t row = s.kernel_w, filter = s.group_in * s.kernel_h * row, item = sizeof(uint16_t);
    const bool dense = w.strides[1] == s.kernel_h * row * item && w.strides[2] == row * item;
    for (int64_t o = 0; o < w.count; ++o)
      for (int64_t i = 0; i < filter / row; i += dense ? filter / row : 1) {
        const std::byte* from =
            w.from + o * w.strides[0] + i / s.kernel_h * w.strides[1] + i % s.kernel_h * w.strides[2];
        const int64_t at = o * filter + i * row;
        winograd_taps()(reinterpret_cast<const uint16_t*>(from), dense ? filter / row : 1, &even[at], &odd[at]);
      }
  }
};

// Calls `pack` for the filters. With Winograd, calls `pack` twice: for the first three factors (even columns) and the
// last three (odd columns).
template <class Pack>
void each_kind(const ConvState& s, const Filters& w, std::byte* to, const Pack& pack) {
  if (!s.winograd) return pack(w, to);
  const Factors factors(s, w);
  const int64_t item = sizeof(uint16_t), row = s.kernel_w * item, channel = s.kernel_h * row;
  for (const auto* taps : {&factors.even, &factors.odd}) {
    pack(Filters{reinterpret_cast<const std::byte*>(taps->data()),
                 w.dtype,
                 w.count,
                 {s.group_in * channel, channel, row, item}},
         to);
    to += weight_bytes(s) / 2;
  }
}

// Packs [O, I, KH, KW] to panels of output channels for each group, with k = (kh, kw, c).
void pack_weights(const ConvState& s, const Tensor& w, std::byte* to) {
  const Filters all{
      w.data, w.dtype, s.out_c, {w.strides[0], w.strides[1], w.strides[2], w.rank == 3 ? 0 : w.strides[3]}};
  if (s.depthwise) {
    // Depthwise: floats, tap by tap, in panels of 16 channels: a matrix [taps * channels of a group, C].
    const int64_t rows = s.kernel_h * s.kernel_w * s.group_in;
    std::memset(to, 0, weight_bytes(s));
    return each_kind(s, all, to, [&](const Filters& f, std::byte* panels) {
      for (int64_t c = 0; c < s.out_c; ++c)
        for (int64_t row = 0; row < rows; ++row) {
          const int64_t tap = row / s.group_in;
          pack_depthwise(f.from + c * f.strides[0] + row % s.group_in * f.strides[1] + tap / s.kernel_w * f.strides[2] +
                             tap % s.kernel_w * f.strides[3],
                         f.dtype, c, row, s.panel_bytes, panels, *s.arithmetic);
        }
      if (s.arithmetic->end_panel)
        for (int64_t c = 0; c < s.out_c; c += kPanelLanes, panels += s.panel_bytes)
          s.arithmetic->end_panel(panels, rows);
    });
  }
  // Panel by panel: a panel stays in cache while it is packed.
  for (int64_t g = 0; g < s.groups; ++g)
    for (int64_t n = 0; n < s.group_out; n += kPanelLanes) {
      Filters filters = all;
      filters.from += (g * s.group_out + n) * all.strides[0];
      filters.count = std::min(kPanelLanes, s.group_out - n);
      std::byte* panel = to + g * s.group_bytes + n / kPanelLanes * s.panel_bytes;
      each_kind(s, filters, panel, [&](const Filters& f, std::byte* at) {
        pack_panels({f.from,
                     f.dtype,
                     {s.kernel_h, s.kernel_w, s.group_in},
                     {f.strides[2], f.strides[3], f.strides[1]},
                     f.count,
                     f.strides[0],
                     s.num_segments == s.kernel_h},
                    s.half_panels, at, s.panel_bytes, *s.arithmetic);
      });
    }
}

// Sets the number of output rows in a chunk, and the scratch for their input rows.
void set_chunks(ConvState& s) {
  const int64_t span_w = std::max<int64_t>(s.out_w - 1, 0) * s.stride_w + (s.kernel_w - 1) * s.dilation_w + 1;
  s.pixel_floats = s.in_place ? s.x_w / 4 : s.arithmetic->items(s.in_c);
  s.row_floats = checked_product(kName, {s.margins ? span_w : s.in_w, s.arithmetic->items(s.in_c), 4}) / 4;
  const int64_t reach = (s.kernel_h - 1) * s.dilation_h + 1;
  const bool once = s.kernel_h == 1 && s.group_in * s.out_c * s.kernel_w * 4 <= kInnerPanelBytes;
  const int64_t fit = (once ? kSmallChunkBytes : kChunkBytes) / std::max<int64_t>(s.row_floats * 4, 1);
  s.chunk_rows =
      s.in_place ? s.out_h : std::clamp<int64_t>((fit - reach) / s.stride_h + 1, 1, std::max<int64_t>(s.out_h, 1));
  s.num_rows = std::max<int64_t>(s.chunk_rows - 1, 0) * s.stride_h + reach;
  s.num_copies = s.in_place ? 0 : std::min(s.num_rows, s.chunk_rows * s.kernel_h);
  checked_product(kName, {std::max<int64_t>(s.num_copies, 1), s.row_floats, 4});
}

// Returns the number of the product's pixels for one output row. Copied input rows are adjacent in memory. If the
// product also computes the pixels between two output rows, all windows of a chunk are equidistant, and a block of rows
// may cross output rows without a copy. The joint product pays if the extra pixels add few blocks.
int64_t row_pixels(const ConvState& s) {
  const Arithmetic& a = *s.arithmetic;
  if (!a.even_rows || s.in_place || s.in_c == 0 || s.stride_h != 1 || s.stride_w != 1 || s.dilation_h != 1 ||
      s.length % a.segment_items)
    return s.out_w;
  const int64_t pixels = s.row_floats / s.pixel_floats;
  const auto blocks = [&](int64_t row) { return ceil_div((s.chunk_rows - 1) * row + s.out_w, a.segment_items); };
  return blocks(pixels) * 2 <= blocks(s.out_w) * 3 ? pixels : s.out_w;
}

// Returns the distance of adjacent outputs in a row that a depthwise tile reads: the stride in an input row, or three
// of Winograd's factors.
int64_t depthwise_stride(const ConvState& s) { return s.winograd ? s.kernel_w : s.stride_w; }

// Returns the number of pixels in a row that `pixels` adjacent output pixels need.
int64_t depthwise_window(const ConvState& s, int64_t pixels) {
  return (pixels - 1) * depthwise_stride(s) + (s.kernel_w - 1) * s.dilation_w + 1;
}

// Packs the weights: once if they are constant, else when a call begins.
void pack_all(const ConvState& s, const Call& call, std::byte* to) {
  if (s.sparse)
    return find_groups(kSparseConv, s.sparse_w, call.inputs[1], call.inputs[2], reinterpret_cast<int64_t*>(to));
  if (s.encoded) return pack_encoded(call.inputs[1], call.inputs[2], s.encoded_w, s.out_c, to, to + s.group_bytes);
  pack_weights(s, call.inputs[1], to);
}

}  // namespace

void set_state(const char* kernel, const Arithmetic& arithmetic, const Call& call, const Tensor& w,
               const Epilogue& epilogue, ConvState& s) {
  const Tensor& x = call.inputs[0];
  const bool ieee = &arithmetic == &ieee_arithmetic();
  s.arithmetic = &arithmetic;
  const bool pairs = is_bf16(arithmetic), engine = !ieee && !pairs;
  if (pairs && s.groups > 1 && s.group_in % 2)
    fail(kernel, "groups: got ", s.group_in, " channels in each of ", s.groups, ", need an even number for bf16");
  s.winograd = engine && call.numerics && static_cast<const EngineNumerics*>(call.numerics)->winograd && w.rank == 4 &&
               s.kernel_h == 3 && s.kernel_w == 3 && s.stride_h == 1 && s.stride_w == 1 && s.dilation_h == 1 &&
               s.dilation_w == 1;
  s.depthwise |= ieee && s.groups > 1 && s.group_in == kSmallGroup && s.group_out == kSmallGroup;
  s.depthwise &= !pairs;
  s.margins = !s.depthwise || s.winograd;
  const bool in_pairs = x.dtype == DType::kBf16 && s.in_c % 2 == 0 && s.x_w % 4 == 0;
  s.bf16_pixels = in_pairs && ieee && s.depthwise && s.group_in == 1;
  const bool is_read = pairs ? arithmetic.reads_bf16 && in_pairs : x.dtype == DType::kFp32 || s.bf16_pixels;
  s.in_place = is_read && !(s.margins && s.padded);
  set_chunks(s);
  s.epilogue = resolve_epilogue(kernel, call, epilogue, engine);
  s.extra.set(call, s.epilogue);
  const bool joined =
      s.dilation_w == 1 && s.pixel_floats == arithmetic.items(s.group_in);  // the taps of a kernel row are dense
  const int64_t taps = s.kernel_h * s.kernel_w;
  s.num_segments = s.depthwise || joined ? s.kernel_h : taps;
  s.length = s.depthwise ? s.kernel_w * s.group_in : taps * arithmetic.items(s.group_in) / s.num_segments;
  s.row_pixels = row_pixels(s);
  const int64_t width = s.depthwise ? s.out_c : s.group_out;
  checked_product(kName, {taps, kPanelLanes, 4, std::max<int64_t>(s.group_in, 1), std::max<int64_t>(s.out_c, 1)});
  checked_product(kName, {depthwise_window(s, kDepthwisePixels), s.kernel_h, 8});
  const int64_t panel_items =
      kPanelLanes * (pairs ? arithmetic.column_items(s.num_segments, s.length) : taps * s.group_in);
  s.half_panels = ieee && !s.depthwise && keep_half(w.dtype, panel_items * ceil_div(width, kPanelLanes), kTileRows);
  s.panel_bytes = s.encoded ? s.encoded_w.panel_bytes : panel_items * (s.half_panels ? 2 : 4) + arithmetic.end_bytes;
  s.group_bytes = s.panel_bytes * ceil_div(width, kPanelLanes);
  s.num_bias = 0;
  if (call.inputs.size() > s.bias_input && call.inputs[s.bias_input].present()) {
    const Tensor& bias = call.inputs[s.bias_input];
    check_bias(kernel, bias, s.out_c);
    if (s.out_c > 0) s.num_bias = s.out_c / width * ceil_div(width, kPanelLanes) * kPanelLanes;
    s.constant_bias = bias.constant;
    if (bias.constant) {
      s.packed_bias = Memory(s.num_bias * 4, "packed bias");
      pack_group_bias(bias, s.out_c, s.depthwise ? s.out_c : s.group_out,
                      reinterpret_cast<float*>(s.packed_bias.data()), arithmetic);
    }
  }
  s.constant_weights = w.constant;
  if (w.constant && !call.asks) {
    const auto pack = [&](std::byte* to) { pack_all(s, call, to); };
    if (s.sparse || s.encoded || s.winograd) {  // share_packed() could not tell these packings apart
      Memory packed(weight_bytes(s), "packed weights");
      pack(packed.data());
      s.packed = call.share(std::move(packed));
    } else {
      s.packed = call.share_packed(
          kName, w,
          {s.kernel_h, s.kernel_w, s.groups, s.group_in, s.group_out, s.out_c, s.depthwise, s.half_panels,
           s.num_segments, s.panel_bytes, s.group_bytes, reinterpret_cast<intptr_t>(s.arithmetic)},
          weight_bytes(s), pack);
    }
  }
}

namespace {

Prepared prepare_in(const Arithmetic& arithmetic, const Call& call) {
  if (call.inputs.size() < 2 || call.outputs.size() != 1)
    fail(kName, "got ", call.inputs.size(), " inputs and ", call.outputs.size(), " outputs, need at least 2 and 1");
  const auto& attrs = call.attributes<ConvAttrs>();
  auto state = std::make_shared<ConvState>();
  set_geometry(kName, *state, call, attrs.window);
  set_state(kName, arithmetic, call, call.inputs[1], attrs.epilogue, *state);
  return state;
}

Prepared prepare(const Call& call) { return prepare_in(ieee_arithmetic(), call); }
Prepared prepare_engine(const Call& call) { return prepare_in(engine_arithmetic(), call); }
Prepared prepare_bf16(const Call& call) { return prepare_in(bf16_arithmetic(), call); }

void cuts(const Call& call, Cuts& cuts) {
  const auto& s = call.state<ConvState>();
  // Sparse: decoding two panels at once is as fast per panel as four, one panel is slower.
  cut_image(s, call, cuts, s.sparse ? kMaskColumns / 2 : kPanelLanes);
}

Box needs(const Call& call, int input, const Box& out) {
  return conv_needs(call.state<ConvState>(), call, input, 3, out);
}

int64_t cost(const Call& call) {
  const auto& s = call.state<ConvState>();
  const int64_t taps = s.kernel_h * s.kernel_w * s.group_in,
                pixels = call.outputs[0].size() / std::max<int64_t>(s.out_c, 1);
  if (s.depthwise) return pixels * s.out_c * taps / 18 + 100;
  return (s.encoded || s.sparse ? s.out_c * taps / 10 : 0) +
         pixels * s.groups * ceil_div(s.group_out, kPanelLanes) * kPanelLanes * taps / 50 + 100;
}

// Scratch of one thread: row table | tile pointers | bias | zeros of a depthwise pixel | results of pixels between rows
// | copied rows | their factors | decoded panels.
int64_t table_items(const ConvState& s) { return ceil_div(s.num_rows, 8) * 8; }
int64_t factor_items(const ConvState& s) { return s.winograd ? 3 * s.in_c * s.out_w : 0; }
int64_t tile_items(const ConvState& s) {
  const int64_t items =
      s.depthwise ? s.kernel_h * depthwise_window(s, kDepthwisePixels) : s.num_segments * s.arithmetic->rows;
  return ceil_div(items, 8) * 8;
}
int64_t zero_items(const ConvState& s) { return s.depthwise ? ceil_div(s.in_c, 16) * 16 : 0; }
int64_t spare_items(const ConvState& s) { return s.row_pixels > s.out_w ? ceil_div(s.group_out, 16) * 16 : 0; }
int64_t decoded_items(const ConvState& s) {
  const bool decodes = s.encoded || (s.sparse && s.chunk_rows * s.out_w > sparse_ops().spread_rows);
  const int64_t k = s.encoded ? s.encoded_w.k : s.sparse_w.k;
  return decodes ? decoded_panels(k) * kPanelLanes * k : 0;
}

int64_t scratch(const Call& call) {
  const auto& s = call.state<ConvState>();
  return 8 * (table_items(s) + tile_items(s)) +
         4 * (s.num_bias + zero_items(s) + spare_items(s) + s.num_copies * s.row_floats + s.num_rows * factor_items(s) +
              decoded_items(s));
}

int64_t shared_scratch(const Call& call) {
  const auto& s = call.state<ConvState>();
  return s.constant_weights ? 0 : weight_bytes(s);
}

void begin(const Call& call, std::byte* shared) {
  const auto& s = call.state<ConvState>();
  if (!s.constant_weights) pack_all(s, call, shared);
}

// A row of the table as a depthwise convolution reads it: `pixels` pixels from `offset` floats on give `outputs` output
// pixels.
struct DepthwiseRow {
  int64_t outputs, pixels, pad_left, offset;
};

// Computes output rows [first, first + count), all channels of the tile. `place(tile, row, column)` locates the output
// pixels.
template <class Place>
void multiply_depthwise(const ConvState& s, const DepthwiseRow& r, int64_t first, int64_t count,
                        const float* const* table, const float** pointers, const float* zeros, Tile& tile,
                        Place&& place) {
  const int64_t width = depthwise_width(r.outputs), num_tiles = ceil_div(r.outputs, width),
                stride = depthwise_stride(s);
  const DepthwiseTile window{s.kernel_h, s.kernel_w, stride, s.dilation_w, depthwise_window(s, width)};
  const auto run_tile = s.arithmetic != &ieee_arithmetic() ? engine_depthwise()
                        : s.group_in > 1                   ? depthwise_functions().groups
                        : s.bf16_pixels                    ? depthwise_functions().bf16
                                                           : depthwise_functions().fp32;
  tile.rows = static_cast<int>(width);
  for (int64_t y = 0; y < count; ++y)
    for (int64_t i = 0; i < num_tiles; ++i) {
      const int64_t x = std::min(i * width, r.outputs - width), left = x * stride - r.pad_left;
      const float** to = pointers;
      for (int64_t kh = 0; kh < s.kernel_h; ++kh) {
        const float* row = table[y * s.stride_h + kh * s.dilation_h];
        for (int64_t j = left; j < left + window.window; ++j)
          *to++ = row && j >= 0 && j < r.pixels ? row + r.offset + j * s.pixel_floats : zeros;
      }
      place(tile, first + y, x);
      run_tile(window, tile);
    }
}

void run(const Call& call, int axis, Range range, std::byte* scratch, const std::byte* shared) {
  const auto& s = call.state<ConvState>();
  const Tensor &x = call.inputs[0], &out = call.outputs[0];
  const Range images = axis == 0 ? range : Range{0, s.batch}, rows = axis == 1 ? range : Range{0, s.out_h},
              channels = axis == out.rank - 1 ? range : Range{0, s.depthwise ? s.out_c : s.group_out};
  const int64_t item = item_bytes(out);
  auto** table = reinterpret_cast<const float**>(scratch);
  const float** pointers = table + table_items(s);
  auto* bias = reinterpret_cast<float*>(pointers + tile_items(s));
  float* zeros = bias + s.num_bias;
  float* spare = zeros + zero_items(s);
  float* copies = spare + spare_items(s);
  std::fill(zeros, copies, 0.0f);
  if (s.num_bias && !s.constant_bias)
    pack_group_bias(call.inputs[s.bias_input], s.out_c, s.depthwise ? s.out_c : s.group_out, bias, *s.arithmetic);
  const float* all_bias = !s.num_bias       ? nullptr
                          : s.constant_bias ? reinterpret_cast<const float*>(s.packed_bias.data())
                                            : bias;
  const std::byte* weights = s.constant_weights ? s.packed->data() : shared;
  float* decoded = copies + s.num_copies * s.row_floats + s.num_rows * factor_items(s);
  const int64_t group_bias = ceil_div(s.group_out, kPanelLanes) * kPanelLanes;
  const int64_t taps_per_row = s.num_segments / s.kernel_h;

  Tile tile{};
  tile.a = pointers;
  tile.num_segments = s.num_segments;
  tile.length = s.length;
  tile.panel_bytes = s.panel_bytes;
  tile.epilogue = &s.epilogue;
  tile.half_output = out.dtype == DType::kFp16;
  tile.bf16_output = out.dtype == DType::kBf16;
  tile.num_columns = s.depthwise ? s.out_c : s.group_out;
  // Sets the tile's rows i to i + run - 1 to output pixels from (oy, ox) on, `step` columns apart.
  const auto place = [&](Tile& t, int i, int run, int64_t n, int64_t oy, int64_t ox, int64_t step, int64_t channel) {
    std::byte* to = out.data + n * s.out_n + oy * s.out_row + ox * s.out_pixel + channel * item;
    for (int r = 0; r < run; ++r) t.out[i + r] = to + r * step * s.out_pixel;
    for (int e = 0; e < s.epilogue.num_extra; ++e) {
      const std::byte* from = s.extra.at(call, s.epilogue, e, n, oy, ox) + channel * item;
      for (int r = 0; r < run; ++r) t.extra[e][i + r] = from + r * step * s.extra.pixel[e];
    }
  };

  for (int64_t n = images.begin; n < images.end; ++n)
    for (int64_t first = rows.begin; first < rows.end; first += s.chunk_rows) {
      const int64_t count = std::min(s.chunk_rows, rows.end - first);
      fill_rows(s, x, n, first, count, table, copies);
      const int64_t even = ceil_div(s.out_w, 2), odd = even * 3 * s.in_c;  // offset of the factors of odd columns
      if (s.winograd)
        for (int64_t i = 0; i < s.num_rows; ++i)
          if (table[i]) {
            float* to = copies + s.num_copies * s.row_floats + i * factor_items(s);
            winograd_factors()(table[i], s.in_c, s.out_w, to, to + odd);
            table[i] = to;
          }
      if (s.depthwise) {
        const auto multiply_columns = [&](const DepthwiseRow& row, int64_t first_x, int64_t step,
                                          const std::byte* panels) {
          tile.bias = all_bias;
          tile.panels = panels + channels.begin / kPanelLanes * s.panel_bytes;
          tile.column = channels.begin;
          tile.num_panels = static_cast<int>(ceil_div(channels.end - channels.begin, kPanelLanes));
          multiply_depthwise(s, row, first, count, table, pointers, zeros, tile, [&](Tile& t, int64_t oy, int64_t ox) {
            place(t, 0, t.rows, n, oy, first_x + ox * step, step, 0);
          });
        };
        if (!s.winograd) {
          multiply_columns({s.out_w, s.in_w, s.pad_left, 0}, 0, 1, weights);
          continue;
        }
        multiply_columns({even, 3 * even, 0, 0}, 0, 2, weights);
        if (s.out_w > 1)
          multiply_columns({s.out_w - even, 3 * (s.out_w - even), 0, odd}, 1, 2, weights + s.group_bytes);
        continue;
      }
      // Computes the output columns first_x, first_x + step, .. . The windows of these columns begin at `offset` floats
      // and are pixel_step floats apart.
      const auto multiply_columns = [&](int64_t first_x, int64_t step, int64_t offset, int64_t pixel_step,
                                        const std::byte* panels) {
        const int64_t width = (s.out_w - first_x + step - 1) / step, between = s.row_pixels - s.out_w;
        for (int64_t g = 0; g < s.groups; ++g) {
          int64_t oy = 0, ox = 0;
          const auto locate = [&](int64_t pixel, int num_pixels, Tile& t) {
            if (pixel == 0) oy = ox = 0;  // tiles are visited in order
            for (int i = 0; i < num_pixels;) {
              const int run = static_cast<int>(std::min<int64_t>(num_pixels - i, width + between - ox));
              const int inside = static_cast<int>(std::clamp<int64_t>(width - ox, 0, run));
              const float** a = pointers + i;
              for (int64_t kh = 0; kh < s.kernel_h; ++kh) {
                const float* tap = table[oy * s.stride_h + kh * s.dilation_h] + offset + ox * pixel_step +
                                   s.arithmetic->items(g * s.group_in);
                for (int64_t kw = 0; kw < taps_per_row;
                     ++kw, a += s.arithmetic->rows, tap += s.dilation_w * s.pixel_floats)
                  for (int r = 0; r < run; ++r) a[r] = tap + r * pixel_step;
              }
              place(t, i, inside, n, first + oy, first_x + ox * step, step, g * s.group_out);
              for (int r = inside; r < run; ++r) {
                t.out[i + r] = reinterpret_cast<std::byte*>(spare);
                for (int e = 0; e < s.epilogue.num_extra; ++e) t.extra[e][i + r] = t.out[i + r];
              }
              i += run;
              ox += run;
              if (ox == width + between) {
                ox = 0;
                ++oy;
              }
            }
          };
          tile.bias = all_bias ? all_bias + g * group_bias : nullptr;
          if (s.encoded)
            multiply_encoded(tile, at_address(s.encoded_w, panels, s.group_bytes), count * width, channels, decoded,
                             locate);
          else if (s.sparse)
            multiply_sparse(tile,
                            {call.inputs[1].data, call.inputs[2].as<const float>(),
                             reinterpret_cast<const int64_t*>(panels), s.sparse_w.k},
                            count * width, channels, decoded, locate);
          else
            multiply(tile, s.half_panels, panels + g * s.group_bytes, count * (width + between) - between, channels,
                     locate, *s.arithmetic);
        }
      };
      if (!s.winograd) {
        multiply_columns(0, 1, 0, s.stride_w * s.pixel_floats, weights);
        continue;
      }
      multiply_columns(0, 2, 0, 3 * s.in_c, weights);
      multiply_columns(1, 2, odd, 3 * s.in_c, weights + s.group_bytes * s.groups);
    }
}

constexpr Kernel row(const char* dtypes, bool engine = false) {
  return {
      .name = "conv",
      .dtypes = dtypes,
      .family = engine ? "engine" : "ieee",
      .attrs = "strides:L dilations:L pads:L groups:i epilogue:E",
      .attrs_bytes = sizeof(ConvAttrs),
      .accepts = "rows",
      .prepare = engine ? prepare_engine : prepare,
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

// Convolutions in bf16. An x that is not in bf16 is rounded to bf16.
constexpr Kernel bf16_row(const char* dtypes) {
  Kernel kernel = row(dtypes);
  kernel.prepare = prepare_bf16;
  return kernel;
}

constexpr Kernel encoded_row(const char* dtypes) {
  Kernel kernel = row(dtypes);
  kernel.name = kEncodedConv;
  kernel.attrs = "bits:i palette:i kernel_sizes:L strides:L dilations:L pads:L epilogue:E";
  kernel.attrs_bytes = sizeof(EncodedConvAttrs);
  kernel.prepare = prepare_encoded_conv;
  kernel.needs = encoded_conv_needs;
  return kernel;
}

constexpr Kernel sparse_row(const char* dtypes) {
  Kernel kernel = row(dtypes);
  kernel.name = kSparseConv;
  kernel.attrs = "columns:i kernel_sizes:L strides:L dilations:L pads:L epilogue:E";
  kernel.attrs_bytes = sizeof(SparseConvAttrs);
  kernel.prepare = prepare_sparse_conv;
  kernel.needs = sparse_conv_needs;
  return kernel;
}

const Kernel kTable[] = {row("fp32,fp32,fp32...->fp32"), row("fp16,fp16,fp16...->fp16"),
                         row("fp16,fp16,fp16...->fp16", true), bf16_row("fp32,bf16,fp32...->fp32"),
                         bf16_row("bf16,bf16,fp32...->fp32"), bf16_row("fp32,bf16,fp32->bf16"),
                         bf16_row("bf16,bf16,fp32->bf16"),
                         // Convolutions in fp32 whose neighbours are in bf16.
                         row("bf16,fp32,fp32...->fp32"), row("bf16,fp32,fp32->bf16"), row("fp32,fp32,fp32->bf16"),
                         encoded_row("fp32,8b,fp32,fp32...->fp32"), encoded_row("fp16,8b,fp32,fp16...->fp16"),
                         sparse_row("fp32,8b,fp32,fp32...->fp32")};

}  // namespace

std::span<const Kernel> conv_table() { return kTable; }

}  // namespace hexane::cpu
