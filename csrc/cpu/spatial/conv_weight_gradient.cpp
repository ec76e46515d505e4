// conv_weight_gradient: the gradient of a convolution's weight, from its input x and the gradient g of its result, both
// channels last:
//   dw[o, c, i, j] = sum over n, y, z of  g[n, y, z, o] *
//                    x[n, y * stride - pad + i * dilation, z * stride - pad + j * dilation, c]
//
// For each row of g and each row i of the kernel, a block of outputs by taps is summed in registers over the pixels of
// the row, and then added to the total. Without dilation the taps (j, c) of a pixel lie one after the other in x:
//
//   x row   . . c0 c1 c2 | c0 c1 c2 | c0 c1 c2 | c0 . .        a kernel 2 wide reads 6 numbers, the next pixel starts
//                  `--- taps of pixel z ---'                    `stride` pixels further on
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/spatial/conv_weight_gradient.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/simd/vector-inl.h"

#include <algorithm>
#include <memory>

#include "cpu/operand.h"
#include "cpu/tables.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

constexpr const char* kName = "conv_weight_gradient";
constexpr int64_t kOutputs = 4, kVectors = 2;  // outputs and vectors of taps in a block of registers

struct Attrs {
  int64_t kernel[2], strides[2], dilations[2], pads[4], groups;
};

struct Shape {
  int64_t n, height, width, channels;                      // Extents of x.
  int64_t rows, columns, outputs;                          // Extents of g.
  int64_t kernel_h, kernel_w, groups, each, outputs_each;  // `each`: input channels of a group.
  bool depthwise;
  int64_t taps() const { return kernel_h * kernel_w * each; }  // taps of one output
  int64_t reach(const Attrs& a) const { return (columns - 1) * a.strides[1] + a.dilations[1] * (kernel_w - 1) + 1; }
};

Shape shape_of(const Call& call) {
  const Tensor &x = call.inputs[0], &g = call.inputs[1];
  const auto& a = call.attributes<Attrs>();
  Shape s = {x.shape[0],
             x.shape[1],
             x.shape[2],
             x.shape[3],
             g.shape[1],
             g.shape[2],
             g.shape[3],
             a.kernel[0],
             a.kernel[1],
             a.groups,
             x.shape[3] / a.groups,
             g.shape[3] / a.groups,
             false};
  s.depthwise = s.each == 1 && s.outputs_each == 1;
  return s;
}

Prepared prepare(const Call& call) {
  const Tensor &x = call.inputs[0], &g = call.inputs[1], &out = call.outputs[0];
  check_dense(kName, "x", x);
  check_dense(kName, "g", g);
  check_dense(kName, "output", out);
  if (x.rank != 4 || g.rank != 4 || out.rank != 4 || x.shape[0] != g.shape[0])
    fail(kName, "got x ", shape_text(x), ", g ", shape_text(g), " and output ", shape_text(out),
         ", need images of one batch and a weight of 4 axes");
  const auto& a = call.attributes<Attrs>();
  for (int i = 0; i < 2; ++i) {
    constexpr int64_t kMost = 1 << 20;
    const int64_t values[] = {a.kernel[i], a.strides[i], a.dilations[i]};
    for (const int64_t value : values)
      if (value < 1 || value > kMost) fail(kName, "got ", value, " as a kernel, stride or dilation, need 1 to ", kMost);
    if (std::min(a.pads[2 * i], a.pads[2 * i + 1]) < 0 || std::max(a.pads[2 * i], a.pads[2 * i + 1]) > kMost)
      fail(kName, "pads: got ", a.pads[2 * i], " and ", a.pads[2 * i + 1], ", need 0 to ", kMost);
    const int64_t room = x.shape[1 + i] + a.pads[2 * i] + a.pads[2 * i + 1] - a.dilations[i] * (a.kernel[i] - 1) - 1;
    if (room < 0 || g.shape[1 + i] != room / a.strides[i] + 1)
      fail(kName, "got g ", shape_text(g), " for x ", shape_text(x), ", need ", room < 0 ? 0 : room / a.strides[i] + 1,
           " windows along axis ", 1 + i);
  }
  if (a.groups < 1 || x.shape[3] % a.groups || g.shape[3] % a.groups || out.shape[0] != g.shape[3] ||
      out.shape[1] != x.shape[3] / a.groups || out.shape[2] != a.kernel[0] || out.shape[3] != a.kernel[1])
    fail(kName, "got an output of ", shape_text(out), " and ", a.groups, " groups for x ", shape_text(x), " and g ",
         shape_text(g), ", need (channels of g, channels of x / groups, kernel)");
  return nullptr;
}

// Scratch: a row of x with padding and with zeros after its end for whole vectors, then the totals of a piece's
// outputs.
int64_t row_floats(const Call& call, const Shape& s) {
  const auto& a = call.attributes<Attrs>();
  return (std::max(s.reach(a), s.width + a.pads[2]) * s.channels + (kVectors + 1) * kLanes + 15) / 16 * 16;
}

int64_t total_floats(const Shape& s, int64_t outputs) {
  return (outputs * s.taps() + (kVectors + 1) * kLanes + 15) / 16 * 16;
}

int64_t scratch(const Call& call) {
  const Shape s = shape_of(call);
  return (row_floats(call, s) + total_floats(s, s.outputs)) * static_cast<int64_t>(sizeof(float));
}

void cuts(const Call& call, Cuts& cuts) {
  const Shape s = shape_of(call);
  cuts.add(0, s.outputs, s.depthwise ? kLanes : kOutputs);
}

int64_t cost(const Call& call) {
  const Shape s = shape_of(call);
  const int64_t products = s.n * s.rows * s.columns * s.outputs * s.taps();
  return 100 + products / 20 + call.inputs[0].size() / 4;
}

void copy_row(const Call& call, const Shape& s, int64_t n, int64_t row, float* to) {
  const float* from = call.inputs[0].as<float>() + (n * s.height + row) * s.width * s.channels;
  std::copy(from, from + s.width * s.channels, to + call.attributes<Attrs>().pads[2] * s.channels);
}

// Adds to the totals of kCount outputs and a run of `length` taps. x is at `taps`, and advances by `step` for each
// pixel.
template <int kCount>
void add_run(const float* taps, int64_t step, int64_t length, const float* g, int64_t g_step, int64_t pixels,
             float* total, int64_t total_step) {
  for (int64_t t = 0; t < length; t += kVectors * kLanes) {
    V sums[kCount][kVectors];
    for (auto& row : sums)
      for (V& sum : row) sum = hn::Zero(D());
    const float* x = taps + t;
    const float* from = g;
    for (int64_t z = 0; z < pixels; ++z, x += step, from += g_step) {
      const V left = load(x), right = load(x + kLanes);
      for (int o = 0; o < kCount; ++o) {
        const V factor = set(from[o]);
        sums[o][0] = hn::MulAdd(factor, left, sums[o][0]);
        sums[o][1] = hn::MulAdd(factor, right, sums[o][1]);
      }
    }
    for (int o = 0; o < kCount; ++o)
      for (int64_t v = 0; v < kVectors; ++v) {
        const int64_t at = t + v * kLanes, left = std::min(kLanes, length - at);
        float* to = total + o * total_step + at;
        if (left == kLanes)
          store(hn::Add(load(to), sums[o][v]), to);
        else if (left > 0)
          store_part(hn::Add(load_part(to, left), sums[o][v]), to, left);
      }
  }
}

void add_outputs(int64_t count, const float* taps, int64_t step, int64_t length, const float* g, int64_t g_step,
                 int64_t pixels, float* total, int64_t total_step) {
  switch (count) {
    case 1:
      return add_run<1>(taps, step, length, g, g_step, pixels, total, total_step);
    case 2:
      return add_run<2>(taps, step, length, g, g_step, pixels, total, total_step);
    case 3:
      return add_run<3>(taps, step, length, g, g_step, pixels, total, total_step);
    default:
      return add_run<kOutputs>(taps, step, length, g, g_step, pixels, total, total_step);
  }
}

// Adds one row of g and row i of the kernel to the totals of a piece's outputs. Totals are (output, kernel row, kernel
// column, channel).
void add_row(const Call& call, const Shape& s, Range outputs, const float* row, const float* g, int64_t i,
             float* totals) {
  const auto& a = call.attributes<Attrs>();
  const int64_t step = a.strides[1] * s.channels, line = s.kernel_w * s.each;
  const bool joined = a.dilations[1] == 1 && s.groups == 1;
  for (int64_t o = outputs.begin; o < outputs.end;) {
    const int64_t group = o / s.outputs_each, last = std::min(outputs.end, (group + 1) * s.outputs_each);
    const int64_t count = std::min(kOutputs, last - o);
    float* total = totals + (o - outputs.begin) * s.taps() + i * line;
    for (int64_t j = 0; j < (joined ? 1 : s.kernel_w); ++j)
      add_outputs(count, row + j * a.dilations[1] * s.channels + group * s.each, step, joined ? line : s.each, g + o,
                  s.outputs, s.columns, total + j * s.each, s.taps());
    o += count;
  }
}

// Like add_row(), for one input and one output channel in each group. Vectors go over channels. Totals are (kernel row,
// kernel column, output).
void add_depthwise_row(const Call& call, const Shape& s, Range outputs, const float* row, const float* g, int64_t i,
                       float* totals) {
  const auto& a = call.attributes<Attrs>();
  const int64_t step = a.strides[1] * s.channels, count = outputs.end - outputs.begin;
  for (int64_t j = 0; j < s.kernel_w; ++j)
    for (int64_t o = 0; o < count; o += kLanes) {
      const int64_t left = std::min(kLanes, count - o);
      const float* x = row + j * a.dilations[1] * s.channels + outputs.begin + o;
      const float* from = g + outputs.begin + o;
      V sum = hn::Zero(D());
      for (int64_t z = 0; z < s.columns; ++z, x += step, from += s.outputs)
        sum = hn::MulAdd(left == kLanes ? load(from) : load_part(from, left), load(x), sum);
      float* to = totals + (i * s.kernel_w + j) * count + o;
      if (left == kLanes)
        store(hn::Add(load(to), sum), to);
      else
        store_part(hn::Add(load_part(to, left), sum), to, left);
    }
}

void run(const Call& call, int axis, Range range, std::byte* scratch, const std::byte*) {
  const Shape s = shape_of(call);
  const auto& a = call.attributes<Attrs>();
  const Range outputs = axis < 0 ? Range{0, s.outputs} : range;
  const int64_t count = outputs.end - outputs.begin;
  if (count <= 0 || call.outputs[0].size() == 0) return;
  auto* row = reinterpret_cast<float*>(scratch);
  float* totals = row + row_floats(call, s);
  std::fill(row, totals, 0.0f);
  std::fill_n(totals, total_floats(s, count), 0.0f);
  for (int64_t n = 0; n < s.n; ++n)
    for (int64_t y = 0; y < s.rows; ++y)
      for (int64_t i = 0; i < s.kernel_h; ++i) {
        const int64_t at = y * a.strides[0] - a.pads[0] + i * a.dilations[0];
        if (at < 0 || at >= s.height) continue;
        copy_row(call, s, n, at, row);
        const float* g = call.inputs[1].as<float>() + (n * s.rows + y) * s.columns * s.outputs;
        (s.depthwise ? add_depthwise_row : add_row)(call, s, outputs, row, g, i, totals);
      }
  float* out = call.outputs[0].as<float>() + outputs.begin * s.taps();
  const int64_t places = s.kernel_h * s.kernel_w;
  for (int64_t o = 0; o < count; ++o)
    for (int64_t c = 0; c < s.each; ++c)
      for (int64_t k = 0; k < places; ++k)
        *out++ = s.depthwise ? totals[k * count + o] : totals[o * s.taps() + k * s.each + c];
}

const Kernel kTable[] = {{
    .name = kName,
    .dtypes = "fp32,fp32->fp32",
    .attrs = "kernel_sizes:2i strides:2i dilations:2i pads:4i groups:i",
    .attrs_bytes = sizeof(Attrs),
    .accepts = "dense",
    .prepare = prepare,
    .cuts = cuts,
    .cost = cost,
    .scratch = scratch,
    .run = run,
}};

std::span<const Kernel> conv_weight_gradient_kernels() { return kTable; }

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(conv_weight_gradient_kernels);
std::span<const Kernel> conv_weight_gradient_table() { return HWY_DYNAMIC_DISPATCH(conv_weight_gradient_kernels)(); }
}  // namespace hexane::cpu
#endif
