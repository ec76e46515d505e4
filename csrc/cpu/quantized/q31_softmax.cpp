// q31_softmax: softmax of bytes as TFLite computes it, along one axis. A table has e^-d in Q0.31 for each difference d
// between the largest byte of a line and a byte.
#include <algorithm>
#include <bit>
#include <limits>

#include "cpu/operand.h"
#include "cpu/quantized/q31.h"
#include "cpu/reduce/reduce.h"
#include "cpu/region.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

constexpr const char* kName = "q31_softmax";
constexpr int kSumBits = 12;         // Integer bits in the fixed-point sum of a line.
constexpr int64_t kTableLine = 512;  // Longer lines take their results from a table of all bytes.

int64_t high_product(int64_t x, int64_t y) { return (x * y + (int64_t{1} << 30)) >> 31; }

// 1 / (1 + x) in Q0.31 for x >= 0 in Q0.31, by three steps of Newton's method.
int64_t one_over_one_plus(int64_t x) {
  const int64_t half = (x + (int64_t{1} << 31)) / 2;
  int64_t y = high_product(half, -1010580540) + 1515870810;
  for (int i = 0; i < 3; ++i) y += saturated(4 * high_product(y, (int64_t{1} << 29) - high_product(half, y)));
  return saturated(2 * y);
}

// The factor and shift that turn a power e^-d into a result.
struct Share {
  int64_t factor;
  int shift;
  template <class Out>
  Out of(int32_t power) const {
    const int64_t product = high_product(std::max(power, 0), factor);
    const int64_t steps = (product + ((int64_t{1} << shift) >> 1)) >> shift;
    constexpr int64_t kLow = std::numeric_limits<Out>::min(), kHigh = std::numeric_limits<Out>::max();
    return static_cast<Out>(std::min(steps + kLow, kHigh));
  }
};

template <class Out>
Share share_of(uint64_t sum) {
  const auto total = static_cast<uint32_t>(std::clamp<uint64_t>(sum, 1, 0xffffffff));
  const int bits = std::bit_width(total);
  const int64_t x = static_cast<int64_t>(uint64_t{total} << (32 - bits)) - (int64_t{1} << 31);
  return {one_over_one_plus(x), std::max(bits - (32 - kSumBits) + 31 - 8 * static_cast<int>(sizeof(Out)), 0)};
}

template <class Out>
void line(const uint8_t* x, int64_t x_stride, Out* to, int64_t to_stride, int64_t n, uint8_t flip,
          const int32_t* powers) {
  uint8_t top = 0;
  if (x_stride == 1)
    for (int64_t i = 0; i < n; ++i) top = std::max(top, static_cast<uint8_t>(x[i] ^ flip));
  else
    for (int64_t i = 0; i < n; ++i) top = std::max(top, static_cast<uint8_t>(x[i * x_stride] ^ flip));
  const auto difference = [&](int64_t i) { return top - (x[i * x_stride] ^ flip); };
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; ++i)
    sum += static_cast<uint64_t>((int64_t{std::max(powers[difference(i)], 0)} + (1 << (kSumBits - 1))) >> kSumBits);
  const Share share = share_of<Out>(sum);
  if (n < kTableLine) {
    for (int64_t i = 0; i < n; ++i) to[i * to_stride] = share.of<Out>(powers[difference(i)]);
    return;
  }
  Out results[256];
  for (int d = 0; d < 256; ++d) results[d] = share.of<Out>(powers[d]);
  for (int64_t i = 0; i < n; ++i) to[i * to_stride] = results[difference(i)];
}

int axis_of(const Call& call) {
  return check_axis(kName, *static_cast<const int64_t*>(call.attrs), call.inputs[0].rank);
}

Prepared prepare(const Call& call) {
  if (call.inputs.size() != 2 || call.outputs.size() != 1)
    fail(kName, "got ", call.inputs.size(), " inputs and ", call.outputs.size(), " outputs, need 2 and 1");
  check_operand(kName, "x", call.inputs[0]);
  check_dense(kName, "table", call.inputs[1]);
  check_written(kName, "output", call.outputs[0]);
  check_same_shape(kName, call.outputs[0], call.inputs[0]);
  axis_of(call);
  if (call.inputs[1].rank != 1 || call.inputs[1].shape[0] != 256)
    fail(kName, "table: got ", shape_text(call.inputs[1]), ", need (256,)");
  return nullptr;
}

void cuts(const Call& call, Cuts& cuts) {
  const Tensor& out = call.outputs[0];
  for (int axis = 0; axis < out.rank; ++axis)
    if (out.shape[axis] > 1 && axis != axis_of(call)) cuts.add(axis, out.shape[axis]);
}

Box needs(const Call& call, int input, const Box& out) {
  return input == 0 ? all_along(call.inputs[0], axis_of(call), out) : whole(call.inputs[input]);
}

int64_t cost(const Call& call) {
  const int64_t size = call.outputs[0].size(), n = call.outputs[0].shape[axis_of(call)];
  return 20 + size * 2 + size / std::max<int64_t>(n, 1) * 20;
}

template <class Out>
void run(const Call& call, int cut, Range range, std::byte*, const std::byte*) {
  const Tensor &in = call.inputs[0], &out = call.outputs[0];
  const int along = axis_of(call);
  const int64_t n = in.shape[along];
  if (n == 0) return;
  ReduceLoop::Axis others[8] = {};
  int num_others = 0;
  int64_t from = 0, to = 0;
  for (int i = 0; i < in.rank; ++i) {
    if (i == along) continue;
    const int64_t begin = i == cut ? range.begin : 0, end = i == cut ? range.end : in.shape[i];
    from += begin * in.strides[i], to += begin * out.strides[i];
    others[num_others++] = {end - begin, in.strides[i], out.strides[i]};
  }
  const uint8_t flip = in.dtype == DType::kInt8 ? 0x80 : 0;
  for_each(others, num_others, from, to, [&](int64_t x, int64_t y) {
    line(reinterpret_cast<const uint8_t*>(in.data + x), in.strides[along], reinterpret_cast<Out*>(out.data + y),
         out.strides[along] / static_cast<int64_t>(sizeof(Out)), n, flip, call.inputs[1].as<int32_t>());
  });
}

template <class Out>
constexpr Kernel softmax(const char* dtypes) {
  return {
      .name = kName,
      .dtypes = dtypes,
      .attrs = "axis:i",
      .attrs_bytes = 8,
      .accepts = "strided",
      .prepare = prepare,
      .cuts = cuts,
      .needs = needs,
      .cost = cost,
      .run = run<Out>,
  };
}

constexpr Kernel kTable[] = {
    softmax<int8_t>("8b,int32->int8"),
    softmax<uint8_t>("8b,int32->uint8"),
    softmax<int16_t>("8b,int32->int16"),
};

}  // namespace

std::span<const Kernel> q31_softmax_table() { return kTable; }

}  // namespace hexane::cpu
