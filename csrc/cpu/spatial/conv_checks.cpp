// Checks, geometry and packing that the convolutions share.
#include "cpu/region.h"
#include "cpu/spatial/conv.h"

namespace hexane::cpu {
namespace {

// Returns the output extent of one spatial axis.
int64_t out_extent(int64_t in, int64_t kernel, int64_t stride, int64_t dilation, int64_t pad_begin, int64_t pad_end) {
  const int64_t room = in + pad_begin + pad_end - ((kernel - 1) * dilation + 1);
  return room < 0 ? 0 : room / stride + 1;
}

}  // namespace

int64_t window_attribute(const char* kernel, const IntList& list, int64_t index, int64_t count, int64_t least,
                         const char* what) {
  if (list.count != count) fail(kernel, what, ": got ", list.count, " values, need ", count);
  const int64_t value = list.values[index];
  if (value < least || value > kMaxWindow) fail(kernel, what, ": got ", value, ", need ", least, " to ", kMaxWindow);
  return value;
}

void check_images(const char* kernel, const Tensor& x, const Tensor& weight, const Tensor& output) {
  check_operand(kernel, "x", x);
  check_operand(kernel, "weight", weight);
  check_written(kernel, "output", output);
  if ((x.rank != 3 && x.rank != 4) || weight.rank != x.rank || output.rank != x.rank)
    fail(kernel, "ranks: got ", x.rank, ", ", weight.rank, " -> ", output.rank,
         ", need 4 (two spatial axes) or 3 (one)");
  check_image(kernel, "x", x);
  check_image(kernel, "output", output);
}

void ExtraImages::set(const Call& call, const ResolvedEpilogue& epilogue) {
  for (int i = 0; i < epilogue.num_extra; ++i) {
    const Tensor& image = call.inputs[epilogue.extra_operand[i]];
    n[i] = image.strides[0];
    row[i] = image.strides[1];
    pixel[i] = image.rank == 3 ? 0 : image.strides[2];
  }
}

void pack_group_bias(const Tensor& bias, int64_t channels, int64_t width, float* to, const Arithmetic& arithmetic) {
  for (int64_t begin = 0; begin < channels; begin += width, to += ceil_div(width, kPanelLanes) * kPanelLanes) {
    const int64_t stride = bias.strides[bias.rank - 1];
    const Tensor part{bias.data + begin * stride, bias.dtype, 1, bias.constant, 0, &width, &stride};
    pack_bias(part, width, to, arithmetic);
  }
}

void set_geometry(const char* kernel, ConvGeometry& s, const Call& call, const ConvWindow& attrs) {
  const Tensor &x = call.inputs[0], &w = call.inputs[1], &out = call.outputs[0];
  check_images(kernel, x, w, out);
  const bool flat = x.rank == 3;
  const int64_t spatial = x.rank - 2;
  s.batch = x.shape[0];
  s.in_h = x.shape[1];
  s.in_w = flat ? 1 : x.shape[2];
  s.in_c = x.shape[x.rank - 1];
  s.out_h = out.shape[1];
  s.out_w = flat ? 1 : out.shape[2];
  s.out_c = out.shape[out.rank - 1];
  s.kernel_h = w.shape[2];
  s.kernel_w = flat ? 1 : w.shape[3];
  s.stride_h = window_attribute(kernel, attrs.strides, 0, spatial, 1, "strides");
  s.dilation_h = window_attribute(kernel, attrs.dilations, 0, spatial, 1, "dilations");
  s.pad_top = window_attribute(kernel, attrs.pads, 0, 2 * spatial, 0, "pads");
  const int64_t pad_bottom = window_attribute(kernel, attrs.pads, 1, 2 * spatial, 0, "pads");
  s.stride_w = flat ? 1 : window_attribute(kernel, attrs.strides, 1, spatial, 1, "strides");
  s.dilation_w = flat ? 1 : window_attribute(kernel, attrs.dilations, 1, spatial, 1, "dilations");
  s.pad_left = flat ? 0 : window_attribute(kernel, attrs.pads, 2, 2 * spatial, 0, "pads");
  const int64_t pad_right = flat ? 0 : window_attribute(kernel, attrs.pads, 3, 2 * spatial, 0, "pads");
  s.groups = attrs.groups;
  if (s.groups < 1 || s.in_c % s.groups || s.out_c % s.groups || w.shape[0] != s.out_c ||
      w.shape[1] != s.in_c / s.groups)
    fail(kernel, "channels: got x ", s.in_c, ", weight ", shape_text(w), ", output ", s.out_c, ", groups ", s.groups,
         ", need weight (O, C / groups, ..) with both divisible by groups");
  if (s.kernel_h < 1 || s.kernel_w < 1 || s.kernel_h > kMaxWindow || s.kernel_w > kMaxWindow)
    fail(kernel, "weight: got ", shape_text(w), ", need a kernel of at least 1");
  const int64_t h = out_extent(s.in_h, s.kernel_h, s.stride_h, s.dilation_h, s.pad_top, pad_bottom),
                width = out_extent(s.in_w, s.kernel_w, s.stride_w, s.dilation_w, s.pad_left, pad_right);
  if (out.shape[0] != s.batch || s.out_h != h || s.out_w != width)
    fail(kernel, "output: got ", shape_text(out), ", need batch ", s.batch, " and spatial extents ", h,
         flat ? "" : " x ", flat ? std::string() : std::to_string(width));
  set_groups_and_strides(s, x, out);
  s.padded = s.pad_top || pad_bottom || s.pad_left || pad_right;
}

void cut_image(const ConvGeometry& s, const Call& call, Cuts& cuts, int64_t grain) {
  const bool by_channel = (s.groups == 1 || s.depthwise) && s.out_c > grain;
  const bool channels_first =
      by_channel && s.groups == 1 && s.out_c >= 8 * kPanelLanes && s.kernel_h * s.kernel_w * s.out_c > s.in_h * s.in_w;
  const int last = call.outputs[0].rank - 1;
  if (s.batch > 1) cuts.add(0, s.batch);
  if (channels_first) cuts.add(last, s.out_c, grain);
  if (s.out_h > 1) cuts.add(1, s.out_h);
  if (by_channel && !channels_first) cuts.add(last, s.out_c, grain);
}

Box conv_needs(const ConvGeometry& g, const Call& call, int input, int first_extra, const Box& out) {
  const Tensor& t = call.inputs[input];
  if (input >= first_extra) return out;
  if (input > 1) return per_column(t, out);
  const int last = out.rank - 1;
  Box box = whole(t);
  if (input == 1) {
    box[0] = out[last];
    return box;
  }
  box[0] = out[0];
  box[1] = reached(out[1], g.stride_h, g.pad_top, (g.kernel_h - 1) * g.dilation_h + 1, g.in_h);
  if (last == 3) box[2] = reached(out[2], g.stride_w, g.pad_left, (g.kernel_w - 1) * g.dilation_w + 1, g.in_w);
  box[last] = {out[last].begin / g.group_out * g.group_in, ceil_div(out[last].end, g.group_out) * g.group_in};
  return box;
}

}  // namespace hexane::cpu
