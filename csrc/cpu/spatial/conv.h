// The geometry of a convolution, and the window of input rows that it reads through a table of row pointers.
//
// Rows are read in place if they are fp32 and unpadded. Rows in another dtype or with padding are copied to scratch as
// fp32 with zero padding, only the rows for one chunk of output rows. In place or copied, the taps of a kernel row at
// one output pixel are `kernel_w` pixels of one row, `dilation_w` apart.
#pragma once

#include "cpu/matmul/sparse.h"

namespace hexane::cpu {

inline constexpr int64_t kMaxWindow = 1 << 24;  // largest stride, dilation, pad or kernel extent

// Returns value `index` of an attribute; throws Error unless the attribute has `count` values and the value is in
// [least, kMaxWindow].
int64_t window_attribute(const char* kernel, const IntList& list, int64_t index, int64_t count, int64_t least,
                         const char* what);

// Throws Error unless x, weight and output have one rank, 3 or 4, and the images have dense channels and strides of
// whole elements.
void check_images(const char* kernel, const Tensor& x, const Tensor& weight, const Tensor& output);

// Strides in bytes of the images that an epilogue reads, which have the output's shape.
struct ExtraImages {
  int64_t n[kMaxSlots], row[kMaxSlots], pixel[kMaxSlots];

  void set(const Call& call, const ResolvedEpilogue& epilogue);
  const std::byte* at(const Call& call, const ResolvedEpilogue& epilogue, int slot, int64_t n_at, int64_t y,
                      int64_t x) const {
    return call.inputs[epilogue.extra_operand[slot]].data + n_at * n[slot] + y * row[slot] + x * pixel[slot];
  }
};

// Packs the bias of every group of `width` channels, padded to whole panels.
void pack_group_bias(const Tensor& bias, int64_t channels, int64_t width, float* to,
                     const Arithmetic& arithmetic = ieee_arithmetic());

inline constexpr int64_t kSmallGroup = 4;  // channels of a small group: as fp32 they fill one 128-bit block of a vector

struct ConvWindow {
  IntList strides, dilations, pads;
  int64_t groups;
};

struct ConvGeometry {
  int64_t batch, in_h, in_w, in_c, out_h, out_w, out_c;  // a 1-D convolution has its spatial axis in h, and w = 1
  int64_t kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, pad_top, pad_left;
  int64_t groups, group_in, group_out;
  bool padded;
  bool depthwise;         // Groups have one input and one output channel, or in conv kSmallGroup of each.
  int64_t x_n, x_h, x_w;  // Strides in bytes.
  int64_t out_n, out_row, out_pixel;
};

// Sets the channels of a group and the strides of input and output in a state with these members.
template <class State>
void set_groups_and_strides(State& s, const Tensor& x, const Tensor& out) {
  const bool flat = x.rank == 3;
  s.group_in = s.in_c / s.groups;
  s.group_out = s.out_c / s.groups;
  s.depthwise = s.groups > 1 && s.group_in == 1 && s.group_out == 1;
  s.x_n = x.strides[0];
  s.x_h = x.strides[1];
  s.x_w = flat ? 0 : x.strides[2];
  s.out_n = out.strides[0];
  s.out_row = out.strides[1];
  s.out_pixel = flat ? 0 : out.strides[2];
}

// Checks the shapes of a convolution with channels last, and the attributes, and sets the geometry; throws Error.
void set_geometry(const char* kernel, ConvGeometry& g, const Call& call, const ConvWindow& window);

// Lists the cuts: along images, output rows, and channels with this grain. Channels come first if the weights are
// larger than the image.
void cut_image(const ConvGeometry& g, const Call& call, Cuts& cuts, int64_t grain = kPanelLanes);

// Returns the box of an input for a box of the output. `first_extra`: the first input that the epilogue adds. Inputs
// between the weights and `first_extra` have one element per channel.
Box conv_needs(const ConvGeometry& g, const Call& call, int input, int first_extra, const Box& out);

struct ConvState : ConvGeometry {
  ExtraImages extra;
  bool margins;                      // Rows include their padding; false for depthwise.
  bool in_place;                     // Input rows are read in place.
  bool bf16_pixels = false;          // A depthwise convolution reads bf16 pixels in place.
  int64_t pixel_floats, row_floats;  // Floats of a pixel and of a row, read in place or copied.
  int64_t chunk_rows;                // Output rows whose input rows are in scratch at once.
  int64_t num_rows;                  // Entries of the row table: input rows that a chunk spans.
  int64_t num_copies;                // Rows of scratch.
  int64_t num_segments, length;
  int64_t row_pixels;  // pixels of an output row in the product, at least out_w
  bool half_panels;
  const Arithmetic* arithmetic = &ieee_arithmetic();
  bool winograd = false;  // see engine/winograd.h
  int64_t panel_bytes, group_bytes;
  int64_t num_bias;
  size_t bias_input = 2;
  bool encoded = false;  // weights are `encoded_w`, with addresses set in each call
  EncodedPanels encoded_w;
  bool sparse = false;  // weights are `sparse_w`, read in place
  SparseShape sparse_w{};
  bool constant_weights, constant_bias;
  Block packed;
  Memory packed_bias;
  ResolvedEpilogue epilogue;
};

// Sets all fields except the geometry. w: the shape of the decoded weights [O, I, KH, KW].
void set_state(const char* kernel, const Arithmetic& arithmetic, const Call& call, const Tensor& w,
               const Epilogue& epilogue, ConvState& s);

// ---- weights that are stored as two operands ----

inline constexpr const char* kEncodedConv = "encoded_conv";
inline constexpr const char* kSparseConv = "sparse_conv";

struct EncodedConvAttrs {
  int64_t bits, palette;
  IntList kernel_sizes, strides, dilations, pads;
  Epilogue epilogue;
};
static_assert(sizeof(EncodedConvAttrs) == 8 * (2 + 4 * 9 + 17));

struct SparseConvAttrs {
  int64_t columns;
  IntList kernel_sizes, strides, dilations, pads;
  Epilogue epilogue;
};
static_assert(sizeof(SparseConvAttrs) == 8 * (1 + 4 * 9 + 17));

Prepared prepare_encoded_conv(const Call& call);
Prepared prepare_sparse_conv(const Call& call);
Box encoded_conv_needs(const Call& call, int input, const Box& out);
Box sparse_conv_needs(const Call& call, int input, const Box& out);

// ---- tiles of depthwise convolutions ----

// Describes a depthwise tile: tile.rows (7, 4 or 1) adjacent output pixels of one row. tile.a points to the input
// pixels of their windows, [kernel_h][window].
struct DepthwiseTile {
  int64_t kernel_h, kernel_w, stride_w, dilation_w, window;
};
using DepthwiseFunction = void (*)(const DepthwiseTile&, const Tile&);
struct DepthwiseFunctions {
  DepthwiseFunction fp32, bf16;  // Functions by the dtype of the input pixels.
  DepthwiseFunction groups;      // Function for groups of kSmallGroup channels.
};
const DepthwiseFunctions& depthwise_functions();
inline constexpr int64_t kDepthwisePixels = 7;

// Returns the width of depthwise tiles for a row of `pixels` pixels. The last tile overlaps the previous tile, so that
// all tiles are whole.
inline int64_t depthwise_width(int64_t pixels) {
  if (pixels < 4) return 1;
  return pixels < 7 || ceil_div(pixels, 7) * 8 > ceil_div(pixels, 4) * 5 ? 4 : 7;
}

// Packs one weight of a depthwise convolution: channel c of tap `tap`.
inline void pack_depthwise(const std::byte* from, DType dtype, int64_t c, int64_t tap, int64_t panel_bytes,
                           std::byte* to, const Arithmetic& arithmetic = ieee_arithmetic()) {
  float* panel = reinterpret_cast<float*>(to + c / kPanelLanes * panel_bytes);
  arithmetic.to_floats(from, dtype, 1, panel + tap * kPanelLanes + c % kPanelLanes);
}

// Fills the table for output rows [first, first + count) of image n. If rows have no margins, rows outside of the image
// are null.
void fill_rows(const ConvState& state, const Tensor& x, int64_t n, int64_t first, int64_t count, const float** table,
               float* copies);

}  // namespace hexane::cpu
