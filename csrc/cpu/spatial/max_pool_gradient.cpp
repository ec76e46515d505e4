// max_pool_gradient: the gradient of the input x of a max_pool, from the gradient g of its result, both channels last.
// Each element of g is added to dx at the first largest element of its window in x. A NaN counts as largest.
//
//   x   3 5 | 5 1     g  7 | 2      dx  0 7 | 2 0          windows 2 wide, 2 apart
//
// For a vector of channels at a time, the kernel finds each lane's largest tap and adds g at this tap.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/spatial/max_pool_gradient.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/simd/vector-inl.h"

#include <algorithm>

#include "cpu/operand.h"
#include "cpu/region.h"
#include "cpu/tables.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

constexpr const char* kName = "max_pool_gradient";
constexpr int64_t kMostTaps = 1 << 24;  // most taps of a window, so that their indices are exact as floats

struct Attrs {
  int64_t kernel[2], strides[2], dilations[2], pads[4], ceil_mode;
};

// The taps of a window along one axis that lie in x.
struct Taps {
  int64_t begin, end, first, step;  // first: position of tap `begin` in x

  Taps(const Attrs& a, int axis, int64_t place, int64_t extent) : step(a.dilations[axis]) {
    const int64_t start = place * a.strides[axis] - a.pads[2 * axis];
    begin = start >= 0 ? 0 : std::min(a.kernel[axis], (-start + step - 1) / step);
    end = extent <= start ? begin : std::min(a.kernel[axis], (extent - start + step - 1) / step);
    end = std::max(begin, end);
    first = start + begin * step;
  }
  int64_t count() const { return end - begin; }
};

Prepared prepare(const Call& call) {
  const Tensor &x = call.inputs[0], &g = call.inputs[1], &out = call.outputs[0];
  check_dense(kName, "x", x);
  check_dense(kName, "g", g);
  check_dense(kName, "output", out);
  if (x.rank != 4 || g.rank != 4 || out.rank != 4 || x.shape[0] != g.shape[0] || x.shape[3] != g.shape[3] ||
      !std::equal(x.shape, x.shape + 4, out.shape))
    fail(kName, "got x ", shape_text(x), ", g ", shape_text(g), " and output ", shape_text(out),
         ", need x and g with equal batch and channels, and an output of the shape of x");
  const auto& a = call.attributes<Attrs>();
  int64_t taps = 1;
  for (int i = 0; i < 2; ++i) {
    constexpr int64_t kMost = 1 << 20;
    for (const int64_t value : {a.kernel[i], a.strides[i], a.dilations[i]})
      if (value < 1 || value > kMost) fail(kName, "got ", value, " as a kernel, stride or dilation, need 1 to ", kMost);
    const int64_t before = a.pads[2 * i], after = a.pads[2 * i + 1];
    if (std::min(before, after) < 0 || std::max(before, after) > kMost)
      fail(kName, "pads: got ", before, " and ", after, ", need 0 to ", kMost);
    const int64_t room = x.shape[1 + i] + before + after - a.dilations[i] * (a.kernel[i] - 1) - 1;
    const int64_t need = room < 0 ? 0 : (room + (a.ceil_mode ? a.strides[i] - 1 : 0)) / a.strides[i] + 1;
    const int64_t least = room < 0 ? 0 : room / a.strides[i] + 1;
    if (g.shape[1 + i] < least || g.shape[1 + i] > need)
      fail(kName, "got g ", shape_text(g), " for x ", shape_text(x), ", need ", least, " to ", need,
           " windows along axis ", 1 + i);
    taps *= std::min(a.kernel[i], x.shape[1 + i]);
  }
  if (taps > kMostTaps) fail(kName, "window: got ", taps, " elements, need at most ", kMostTaps);
  return nullptr;
}

void cuts(const Call& call, Cuts& cuts) {
  const Tensor& x = call.inputs[0];
  cuts.add(0, x.shape[0], 1);
  cuts.add(3, x.shape[3], 16);
}

// An input is needed for the output's images and channels, with all rows and columns.
Box needs(const Call& call, int input, const Box& out) {
  Box box = out;
  for (int axis = 1; axis < 3; ++axis) box[axis] = {0, call.inputs[input].shape[axis]};
  return box;
}

int64_t cost(const Call& call) {
  const auto& a = call.attributes<Attrs>();
  return 100 + call.inputs[0].size() / 8 + call.inputs[1].size() * a.kernel[0] * a.kernel[1] / 4;
}

// Adds g for one window and `count` <= kLanes channels. Rows of x are `row` floats apart, columns `column` floats.
void add_window(const float* x, const float* g, float* out, const Taps& high, const Taps& wide, int64_t row,
                int64_t column, int64_t count) {
  const D d;
  const bool whole = count == kLanes;
  const auto read = [&](const float* from) HWY_ATTR { return whole ? load(from) : load_part(from, count); };
  V best = set(0), chosen = set(-1);
  float number = 0;
  for (int64_t i = 0; i < high.count(); ++i)
    for (int64_t j = 0; j < wide.count(); ++j, ++number) {
      const V value = read(x + i * row + j * column);
      const M larger = hn::Or(hn::Gt(value, best), hn::AndNot(hn::IsNaN(best), hn::IsNaN(value)));
      const M is_first = hn::Lt(chosen, hn::Zero(d));
      const M better = hn::Or(larger, is_first);
      best = hn::IfThenElse(better, value, best);
      chosen = hn::IfThenElse(better, set(number), chosen);
    }
  const V gradient = read(g);
  number = 0;
  for (int64_t i = 0; i < high.count(); ++i)
    for (int64_t j = 0; j < wide.count(); ++j, ++number) {
      float* to = out + i * row + j * column;
      const V sum = hn::Add(read(to), hn::IfThenElseZero(hn::Eq(chosen, set(number)), gradient));
      if (whole)
        store(sum, to);
      else
        store_part(sum, to, count);
    }
}

void run(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const Tensor &x = call.inputs[0], &g = call.inputs[1];
  const auto& a = call.attributes<Attrs>();
  const int64_t height = x.shape[1], width = x.shape[2], all = x.shape[3];
  const Range images = axis == 0 ? range : Range{0, x.shape[0]}, channels = axis == 3 ? range : Range{0, all};
  const int64_t row = a.dilations[0] * width * all, column = a.dilations[1] * all;
  for (int64_t n = images.begin; n < images.end; ++n) {
    const int64_t image = n * height * width * all;
    float* out = call.outputs[0].as<float>() + image;
    for (int64_t pixel = 0; pixel < height * width; ++pixel)
      std::fill(out + pixel * all + channels.begin, out + pixel * all + channels.end, 0.0f);
    for (int64_t y = 0; y < g.shape[1]; ++y)
      for (int64_t z = 0; z < g.shape[2]; ++z) {
        const Taps high(a, 0, y, height), wide(a, 1, z, width);
        const int64_t first = (high.first * width + wide.first) * all;
        const float* from = g.as<float>() + ((n * g.shape[1] + y) * g.shape[2] + z) * all;
        if (high.count() * wide.count() == 0) continue;
        for (int64_t c = channels.begin; c < channels.end; c += kLanes)
          add_window(x.as<float>() + image + first + c, from + c, out + first + c, high, wide, row, column,
                     std::min(kLanes, channels.end - c));
      }
  }
}

const Kernel kTable[] = {{
    .name = kName,
    .dtypes = "fp32,fp32->fp32",
    .attrs = "kernel_sizes:2i strides:2i dilations:2i pads:4i ceil_mode:i",
    .attrs_bytes = sizeof(Attrs),
    .accepts = "dense",
    .prepare = prepare,
    .cuts = cuts,
    .needs = needs,
    .cost = cost,
    .run = run,
}};

std::span<const Kernel> max_pool_gradient_kernels() { return kTable; }

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(max_pool_gradient_kernels);
std::span<const Kernel> max_pool_gradient_table() { return HWY_DYNAMIC_DISPATCH(max_pool_gradient_kernels)(); }
}  // namespace hexane::cpu
#endif
