// conv_transpose: [N, H, W, C] -> [N, OH, OW, O] with weights [C, O / groups, KH, KW], bias and epilogue.
// Transposed convolutions over one axis have no H and KH.
//
// A phase is all output pixels with the same remainders modulo the strides. The pixels of a phase use the same taps, so
// each phase is a matrix product over (its taps, c). With stride 2 and a kernel of 3 along one axis (no padding; x:
// input, y: output):
//
//   y[0] = x[0] w0                         phase 0: taps 0 and 2
//   y[1] = x[0] w1                         phase 1: tap 1
//   y[2] = x[1] w0 + x[0] w2               phase 0
//
// If a tap falls outside of the input, its part of the product's row is zeros. With one channel in each group there is
// no matrix product: a phase multiplies and adds whole pixels, several adjacent pixels at a time.
#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/region.h"
#include "cpu/spatial/conv.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

struct ConvTransposeAttrs {
  IntList strides, dilations, pads, output_padding;
  int64_t groups;
  Epilogue epilogue;
};
static_assert(sizeof(ConvTransposeAttrs) == 8 * (4 * 9 + 1 + 17));

constexpr const char* kName = "conv_transpose";
constexpr int64_t kChunkBytes = 256 << 10;  // bytes of converted input rows

// One spatial axis.
struct Axis {
  int64_t in, out, kernel, stride, dilation, pad;
  // Returns the input index of tap t for output o of its phase; it may be outside of the input.
  int64_t input(int64_t o, int64_t t) const { return (o + pad - t * dilation) / stride; }
};

struct Tap {
  int64_t h, w;
};

struct Phase {
  int64_t h, w;  // output coordinates modulo the strides
  std::vector<Tap> taps;
  int64_t offset;  // byte offset of the phase's panels
  int64_t panel_bytes, group_bytes;
};

struct State {
  Axis h, w;
  int64_t batch, in_c, out_c, groups, group_in, group_out;
  int64_t x_n, x_h, x_w, out_n, out_row, out_pixel;
  bool depthwise;
  ExtraImages extra;
  bool in_place;
  int64_t pixel_floats;
  int64_t chunk_rows;  // Output rows whose input rows are converted at once.
  int64_t num_rows;    // Input rows that a chunk needs.
  std::vector<Phase> phases;
  int64_t max_taps;
  int64_t weight_bytes;
  int64_t num_bias;
  bool constant_weights, constant_bias;
  Block packed;
  Memory packed_bias;
  ResolvedEpilogue epilogue;

  int64_t width() const { return depthwise ? out_c : group_out; }  // channels that are packed together
};

Axis make_axis(const ConvTransposeAttrs& attrs, int64_t index, int64_t spatial, const Tensor& x, const Tensor& w,
               const Tensor& out) {
  Axis axis{};
  axis.in = x.shape[1 + index];
  axis.out = out.shape[1 + index];
  axis.kernel = w.shape[2 + index];
  axis.stride = window_attribute(kName, attrs.strides, index, spatial, 1, "strides");
  axis.dilation = window_attribute(kName, attrs.dilations, index, spatial, 1, "dilations");
  axis.pad = window_attribute(kName, attrs.pads, 2 * index, 2 * spatial, 0, "pads");
  const int64_t pad_end = window_attribute(kName, attrs.pads, 2 * index + 1, 2 * spatial, 0, "pads");
  const int64_t more = window_attribute(kName, attrs.output_padding, index, spatial, 0, "output_padding");
  if (axis.kernel < 1 || axis.kernel > kMaxWindow)
    fail(kName, "weight: got ", shape_text(w), ", need a kernel of at least 1");
  const int64_t full = axis.in == 0 ? 0 : (axis.in - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1 + more;
  const int64_t want = std::max<int64_t>(full - axis.pad - pad_end, 0);
  if (axis.out != want) fail(kName, "output axis ", 1 + index, ": got ", axis.out, ", need ", want);
  return axis;
}

// Lists the taps of each phase. Tap t belongs to the phase of the first output o for which o + pad - t * dilation is a
// multiple of the stride.
std::vector<std::vector<int64_t>> taps_by_phase(const Axis& axis) {
  std::vector<std::vector<int64_t>> phases(std::min(axis.stride, axis.out));
  for (int64_t t = 0; t < axis.kernel; ++t) {
    const int64_t first = ((t * axis.dilation - axis.pad) % axis.stride + axis.stride) % axis.stride;
    if (first < static_cast<int64_t>(phases.size())) phases[first].push_back(t);
  }
  return phases;
}

void set_phases(State& s, int64_t item) {
  const std::vector<std::vector<int64_t>> rows = taps_by_phase(s.h), columns = taps_by_phase(s.w);
  for (int64_t py = 0; py < static_cast<int64_t>(rows.size()); ++py)
    for (int64_t px = 0; px < static_cast<int64_t>(columns.size()); ++px) {
      Phase phase{py, px, {}, s.weight_bytes, 0, 0};
      for (const int64_t h : rows[py])
        for (const int64_t w : columns[px]) phase.taps.push_back({h, w});
      const int64_t taps = static_cast<int64_t>(phase.taps.size());
      phase.panel_bytes = taps * s.group_in * kPanelLanes * (s.depthwise ? 4 : item);
      phase.group_bytes = phase.panel_bytes * ceil_div(s.width(), kPanelLanes);
      s.weight_bytes += phase.group_bytes * (s.depthwise ? 1 : s.groups);
      s.max_taps = std::max(s.max_taps, taps);
      s.phases.push_back(std::move(phase));
    }
}

void pack_weights(const State& s, const Tensor& w, std::byte* to) {
  const int64_t item = item_bytes(w), w_stride = w.rank == 3 ? 0 : w.strides[3];
  if (s.depthwise) {
    std::memset(to, 0, s.weight_bytes);
    for (const Phase& phase : s.phases)
      for (int64_t tap = 0; tap < static_cast<int64_t>(phase.taps.size()); ++tap)
        for (int64_t c = 0; c < s.out_c; ++c)
          pack_depthwise(w.data + c * w.strides[0] + phase.taps[tap].h * w.strides[2] + phase.taps[tap].w * w_stride,
                         w.dtype, c, tap, phase.panel_bytes, to + phase.offset);
    return;
  }
  for (const Phase& phase : s.phases)
    for (int64_t g = 0; g < s.groups; ++g) {
      std::byte* panels = to + phase.offset + g * phase.group_bytes;
      for (const Tap& tap : phase.taps) {
        const std::byte* from = w.data + g * s.group_in * w.strides[0] + tap.h * w.strides[2] + tap.w * w_stride;
        pack_panels({from, w.dtype, {1, 1, s.group_in}, {0, 0, w.strides[0]}, s.group_out, w.strides[1]},
                    w.dtype == DType::kFp16, panels, phase.panel_bytes);
        panels += s.group_in * kPanelLanes * item;
      }
    }
}

Prepared prepare(const Call& call) {
  if (call.inputs.size() < 2 || call.outputs.size() != 1)
    fail(kName, "got ", call.inputs.size(), " inputs and ", call.outputs.size(), " outputs, need at least 2 and 1");
  const Tensor &x = call.inputs[0], &w = call.inputs[1], &out = call.outputs[0];
  check_images(kName, x, w, out);
  const auto& attrs = call.attributes<ConvTransposeAttrs>();
  const bool flat = x.rank == 3;
  auto state = std::make_shared<State>();
  State& s = *state;
  s.h = make_axis(attrs, 0, x.rank - 2, x, w, out);
  s.w = flat ? Axis{1, 1, 1, 1, 1, 0} : make_axis(attrs, 1, 2, x, w, out);
  s.batch = x.shape[0];
  s.in_c = x.shape[x.rank - 1];
  s.out_c = out.shape[x.rank - 1];
  s.groups = attrs.groups;
  if (out.shape[0] != s.batch || s.groups < 1 || s.in_c % s.groups || s.out_c % s.groups || w.shape[0] != s.in_c ||
      w.shape[1] != s.out_c / s.groups)
    fail(kName, "channels: got x ", shape_text(x), ", weight ", shape_text(w), ", output ", shape_text(out),
         ", groups ", s.groups, ", need weight (C, O / groups, ..) with both divisible by groups, and one batch");
  set_groups_and_strides(s, x, out);
  s.in_place = x.dtype == DType::kFp32;
  s.pixel_floats = s.in_place ? s.x_w / 4 : s.in_c;
  s.epilogue = resolve_epilogue(kName, call, attrs.epilogue);
  s.extra.set(call, s.epilogue);
  const int64_t fit = kChunkBytes / std::max<int64_t>(s.w.in * s.in_c * 4, 1), reach = (s.h.kernel - 1) * s.h.dilation;
  s.chunk_rows = s.in_place ? std::max<int64_t>(s.h.out, 1)
                            : std::clamp<int64_t>((fit - 2) * s.h.stride - reach, 1, std::max<int64_t>(s.h.out, 1));
  s.num_rows = s.in_place ? 0 : std::min(s.h.in, (s.chunk_rows - 1 + reach) / s.h.stride + 2);
  checked_product(kName, {s.h.kernel, s.w.kernel, std::max<int64_t>(s.group_in, 1), std::max<int64_t>(s.out_c, 1), 64});
  checked_product(kName, {std::max<int64_t>(s.num_rows, 1), s.w.in, std::max<int64_t>(s.in_c, 1), 4});
  set_phases(s, item_bytes(w));
  if (call.inputs.size() > 2 && call.inputs[2].present()) {
    check_bias(kName, call.inputs[2], s.out_c);
    if (s.out_c > 0) s.num_bias = s.out_c / s.width() * ceil_div(s.width(), kPanelLanes) * kPanelLanes;
    s.constant_bias = call.inputs[2].constant;
    if (s.constant_bias) {
      s.packed_bias = Memory(s.num_bias * 4, "packed bias");
      pack_group_bias(call.inputs[2], s.out_c, s.width(), reinterpret_cast<float*>(s.packed_bias.data()));
    }
  }
  s.constant_weights = w.constant;
  if (w.constant && !call.asks) {
    Memory packed(s.weight_bytes, "packed weights");
    pack_weights(s, w, packed.data());
    s.packed = call.share(std::move(packed));
  }
  return state;
}

void cuts(const Call& call, Cuts& cuts) {
  const auto& s = call.state<State>();
  if (s.batch > 1) cuts.add(0, s.batch);
  if (s.h.out > 1) cuts.add(1, s.h.out);
  if ((s.groups == 1 || s.depthwise) && s.out_c > kPanelLanes) cuts.add(call.outputs[0].rank - 1, s.out_c, kPanelLanes);
}

// Returns the range of an input axis that a range of the output needs.
Range met(const Axis& a, Range out) {
  const int64_t begin = out.begin + a.pad - (a.kernel - 1) * a.dilation, end = out.end - 1 + a.pad;
  return {std::clamp<int64_t>(begin <= 0 ? 0 : ceil_div(begin, a.stride), 0, a.in),
          std::clamp<int64_t>(end / a.stride + 1, 0, a.in)};
}

Box needs(const Call& call, int input, const Box& out) {
  const auto& s = call.state<State>();
  const Tensor& t = call.inputs[input];
  if (input > 2) return out;
  if (input == 2) return per_column(t, out);
  Box box = whole(t);
  const int last = out.rank - 1;
  const Range groups{out[last].begin / s.group_out, ceil_div(out[last].end, s.group_out)};
  const Range channels{groups.begin * s.group_in, groups.end * s.group_in};  // channels of x
  if (input == 1) {
    box[0] = channels;
    if (s.groups == 1) box[1] = out[last];
    return box;
  }
  box[0] = out[0];
  box[1] = met(s.h, out[1]);
  if (last == 3) box[2] = met(s.w, out[2]);
  box[last] = channels;
  return box;
}

int64_t cost(const Call& call) {
  const auto& s = call.state<State>();
  return call.inputs[0].size() * s.h.kernel * s.w.kernel * s.group_out / (s.depthwise ? 5 : 50) + 100;
}

// Scratch of one thread: pointers of a tile | bias | zeros | converted rows.
int64_t tile_items(const State& s) {
  return ceil_div(s.max_taps * std::max<int64_t>(kTileRows, kDepthwisePixels), 8) * 8;
}
int64_t zero_items(const State& s) { return ceil_div(s.depthwise ? s.in_c : s.group_in, 16) * 16; }
int64_t scratch(const Call& call) {
  const auto& s = call.state<State>();
  return 8 * tile_items(s) + 4 * (s.num_bias + zero_items(s) + s.num_rows * s.w.in * s.in_c);
}

int64_t shared_scratch(const Call& call) {
  const auto& s = call.state<State>();
  return s.constant_weights ? 0 : s.weight_bytes;
}

void begin(const Call& call, std::byte* shared) {
  const auto& s = call.state<State>();
  if (!s.constant_weights) pack_weights(s, call.inputs[1], shared);
}

void convert_rows(const State& s, const Tensor& x, int64_t n, Range rows, float* to) {
  const bool dense = s.x_w == s.in_c * item_bytes(x);
  const int64_t runs = dense ? 1 : s.w.in, length = dense ? s.w.in * s.in_c : s.in_c;
  for (int64_t row = rows.begin; row < rows.end; ++row)
    for (int64_t run = 0; run < runs; ++run, to += length)
      gemm_ops().to_fp32(x.data + n * s.x_n + x.kept_row(row) * s.x_h + run * s.x_w, x.dtype, length, to);
}

// The coordinates of a phase in [begin, end): the first one, and their number.
struct Steps {
  int64_t first, count;
};
Steps steps(int64_t begin, int64_t end, int64_t phase, int64_t stride) {
  const int64_t first = begin + (phase - begin % stride + stride) % stride;
  return {first, first < end ? ceil_div(end - first, stride) : 0};
}

void run(const Call& call, int axis, Range range, std::byte* scratch, const std::byte* shared) {
  const auto& s = call.state<State>();
  const Tensor &x = call.inputs[0], &out = call.outputs[0];
  const Range images = axis == 0 ? range : Range{0, s.batch}, rows = axis == 1 ? range : Range{0, s.h.out},
              channels = axis == out.rank - 1 ? range : Range{0, s.width()};
  auto** pointers = reinterpret_cast<const float**>(scratch);
  auto* bias = reinterpret_cast<float*>(pointers + tile_items(s));
  float* zeros = bias + s.num_bias;
  float* converted = zeros + zero_items(s);
  std::fill(zeros, converted, 0.0f);
  if (s.num_bias && !s.constant_bias) pack_group_bias(call.inputs[2], s.out_c, s.width(), bias);
  const float* all_bias = s.constant_bias ? reinterpret_cast<const float*>(s.packed_bias.data()) : bias;
  const std::byte* weights = s.constant_weights ? s.packed->data() : shared;

  Tile tile{};
  tile.a = pointers;
  tile.length = s.group_in;
  tile.epilogue = &s.epilogue;
  tile.half_output = out.dtype == DType::kFp16;
  tile.num_columns = s.width();

  const auto multiply_phase = [&](const Phase& phase, int64_t g, int64_t n, Range chunk, int64_t first_row) {
    const Steps ys = steps(chunk.begin, chunk.end, phase.h, s.h.stride), xs = steps(0, s.w.out, phase.w, s.w.stride);
    const auto pixel_of = [&](int64_t iy, int64_t ix) {
      if (iy < 0 || iy >= s.h.in || ix < 0 || ix >= s.w.in) return static_cast<const float*>(zeros);
      const float* row = s.in_place ? reinterpret_cast<const float*>(x.data + n * s.x_n + x.kept_row(iy) * s.x_h)
                                    : converted + (iy - first_row) * s.w.in * s.in_c;
      return row + ix * s.pixel_floats + g * s.group_in;
    };
    // Sets row i of the tile to an output pixel. Pointers of successive taps are `pitch` apart.
    const auto place = [&](Tile& t, int i, int64_t oy, int64_t ox, int64_t pitch) {
      const float** a = pointers + i;
      for (const Tap& tap : phase.taps) {
        *a = pixel_of(s.h.input(oy, tap.h), s.w.input(ox, tap.w));
        a += pitch;
      }
      const int64_t channel = g * s.group_out * item_bytes(out);
      t.out[i] = out.data + n * s.out_n + oy * s.out_row + ox * s.out_pixel + channel;
      for (int e = 0; e < s.epilogue.num_extra; ++e)
        t.extra[e][i] = s.extra.at(call, s.epilogue, e, n, oy, ox) + channel;
    };
    if (s.depthwise) {
      const int64_t width = depthwise_width(xs.count), num_taps = static_cast<int64_t>(phase.taps.size());
      const DepthwiseTile window{num_taps, 1, 1, 1, width};
      const auto run_tile = depthwise_functions().fp32;
      tile.rows = static_cast<int>(width);
      tile.panel_bytes = phase.panel_bytes;
      tile.bias = s.num_bias ? all_bias : nullptr;
      tile.panels = weights + phase.offset + channels.begin / kPanelLanes * phase.panel_bytes;
      tile.column = channels.begin;
      tile.num_panels = static_cast<int>(ceil_div(channels.end - channels.begin, kPanelLanes));
      for (int64_t y = 0; y < ys.count; ++y)
        for (int64_t first = 0; first < xs.count; first += width) {
          const int64_t start = std::min(first, xs.count - width);
          for (int i = 0; i < tile.rows; ++i)
            place(tile, i, ys.first + y * s.h.stride, xs.first + (start + i) * s.w.stride, width);
          run_tile(window, tile);
        }
      return;
    }
    const auto locate = [&](int64_t first, int count, Tile& t) {
      for (int i = 0; i < count; ++i)
        place(t, i, ys.first + (first + i) / xs.count * s.h.stride, xs.first + (first + i) % xs.count * s.w.stride,
              kTileRows);
    };
    tile.num_segments = static_cast<int64_t>(phase.taps.size());
    tile.panel_bytes = phase.panel_bytes;
    tile.bias = s.num_bias ? all_bias + g * ceil_div(s.group_out, kPanelLanes) * kPanelLanes : nullptr;
    multiply(tile, x.dtype == DType::kFp16, weights + phase.offset + g * phase.group_bytes, ys.count * xs.count,
             channels, locate);
  };

  for (int64_t n = images.begin; n < images.end; ++n)
    for (int64_t first = rows.begin; first < rows.end; first += s.chunk_rows) {
      const Range chunk{first, std::min(first + s.chunk_rows, rows.end)};
      const Range needed = met(s.h, chunk);
      if (!s.in_place) convert_rows(s, x, n, needed, converted);
      for (const Phase& phase : s.phases)
        for (int64_t g = 0; g < (s.depthwise ? 1 : s.groups); ++g) multiply_phase(phase, g, n, chunk, needed.begin);
    }
}

constexpr Kernel row(const char* dtypes) {
  return {
      .name = "conv_transpose",
      .dtypes = dtypes,
      .attrs = "strides:L dilations:L pads:L output_padding:L groups:i epilogue:E",
      .attrs_bytes = sizeof(ConvTransposeAttrs),
      .accepts = "rows",
      .prepare = prepare,
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

const Kernel kTable[] = {row("fp32,fp32,fp32...->fp32"), row("fp16,fp16,fp16...->fp16")};

}  // namespace

std::span<const Kernel> conv_transpose_table() { return kTable; }

}  // namespace hexane::cpu
