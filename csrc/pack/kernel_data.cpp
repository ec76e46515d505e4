#include "pack/kernel_data.h"

#include <algorithm>
#include <array>
#include <bit>

#include "core/error.h"

namespace hexane::pack {
namespace {

constexpr int64_t kMost = int64_t{1} << 40;  // most weights, and most bits of a packed kernel

int64_t taps(const Kernel& kernel) { return kernel.depth * kernel.height * kernel.width; }

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t floor_power(int64_t x) { return x < 1 ? 1 : static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(x))); }

void need(const char* what, int64_t got, int64_t most) {
  if (got < 1 || got > most) fail("pack", what, ": got ", got, ", need 1..", most);
}

void validate(const Kernel& kernel) {
  int64_t room = kMost;
  for (const auto& [what, extent] :
       {std::pair("outputs", kernel.outputs), std::pair("inputs", kernel.inputs), std::pair("depth", kernel.depth),
        std::pair("height", kernel.height), std::pair("width", kernel.width)}) {
    need(what, extent, room);
    room /= extent;
  }
  need("bits", kernel.bits, 16);
  need("groups", kernel.groups, kernel.outputs);
  if (kernel.outputs % kernel.groups)
    fail("pack", "groups: got ", kernel.groups, ", need a divisor of ", kernel.outputs, " outputs");
}

uint32_t get_bits(const uint8_t* bytes, int64_t index, int64_t bits) {
  uint32_t value = 0;
  for (int64_t done = 0; done < bits;) {
    const int64_t at = index * bits + done, shift = at % 8, count = std::min(bits - done, 8 - shift);
    value |= ((bytes[at / 8] >> shift) & ((1u << count) - 1)) << done;
    done += count;
  }
  return value;
}

// The destination bits must be zero.
void put_bits(uint8_t* bytes, int64_t index, int64_t bits, uint32_t value) {
  for (int64_t done = 0; done < bits;) {
    const int64_t at = index * bits + done, shift = at % 8, count = std::min(bits - done, 8 - shift);
    bytes[at / 8] |= static_cast<uint8_t>(((value >> done) & ((1u << count) - 1)) << shift);
    done += count;
  }
}

// Element strides of the axes o, i, d, h, w in the user's layout.
std::array<int64_t, 5> strides_of(const Kernel& kernel, std::string_view layout) {
  constexpr std::string_view kAxes = "oidhw";
  const std::array<int64_t, 5> extents{kernel.outputs, kernel.inputs, kernel.depth, kernel.height, kernel.width};
  std::array<int64_t, 5> strides{};
  int64_t stride = 1;
  for (auto axis = layout.rbegin(); axis != layout.rend(); ++axis) {
    const size_t which = kAxes.find(*axis);
    if (which == kAxes.npos || strides[which] != 0 || layout.size() != kAxes.size())
      fail("pack", "layout: got '", std::string(layout), "', need the axes o, i, d, h, w, each once");
    strides[which] = stride;
    stride *= extents[which];
  }
  if (layout.size() != kAxes.size())
    fail("pack", "layout: got '", std::string(layout), "', need the axes o, i, d, h, w, each once");
  return strides;
}

int64_t weight_bytes(const Kernel& kernel) {
  return ceil_div(kernel.outputs * kernel.inputs * taps(kernel) * kernel.bits, 8);
}

void need_bytes(const char* what, size_t got, int64_t need) {
  if (static_cast<int64_t>(got) != need) fail("pack", what, ": got ", got, " bytes, need ", need);
}

// Calls move(index in the user's layout, index in the sub-kernel, engine) for every weight.
template <typename Move>
void for_each(const Kernel& kernel, const Engines& engines, const Shape& shape, std::string_view layout, Move move) {
  const auto [o_stride, i_stride, d_stride, h_stride, w_stride] = strides_of(kernel, layout);
  const int64_t per_group = kernel.outputs / kernel.groups;  // output channels per group of the convolution
  const int64_t cuts = ceil_div(per_group, engines.output_channels);
  const int64_t group_size = taps(kernel) * kernel.inputs * engines.output_channels;
  for (int64_t o = 0; o < kernel.outputs; o++) {
    const int64_t group = o / per_group * cuts + o % per_group / engines.output_channels;
    const int64_t lane = o % per_group % engines.output_channels;
    const int64_t engine = group % shape.active, pass = group / shape.active;
    int64_t to = pass * group_size + lane;
    for (int64_t d = 0; d < kernel.depth; d++)
      for (int64_t h = 0; h < kernel.height; h++)
        for (int64_t w = 0; w < kernel.width; w++)
          for (int64_t i = 0; i < kernel.inputs; i++, to += engines.output_channels)
            move(o * o_stride + i * i_stride + d * d_stride + h * h_stride + w * w_stride, to, engine);
  }
}

}  // namespace

int64_t output_group_decoded(const Kernel& kernel, int64_t accumulators, int64_t bytes) {
  validate(kernel);
  return std::min(floor_power(accumulators / taps(kernel)), floor_power(bytes / taps(kernel)));
}

int64_t output_group_measured(const Kernel& kernel, int64_t kernel_memory, int64_t most) {
  validate(kernel);
  need("kernel memory", kernel_memory, kMost);
  need("most", most, kMost);
  const int64_t bits = kernel.inputs * taps(kernel) * kernel.bits;  // bits of one output channel's weights
  return floor_power(std::min(most, 8 * kernel_memory / bits));
}

Shape packed_shape(const Kernel& kernel, const Engines& engines) {
  validate(kernel);
  for (const auto& [what, got] : {std::pair("engines", engines.count), std::pair("alignment", engines.alignment)}) {
    need(what, got, 1 << 20);
    if (!std::has_single_bit(static_cast<uint64_t>(got))) fail("pack", what, ": got ", got, ", need a power of two");
  }
  need("output channels", engines.output_channels, 1 << 20);
  Shape shape;
  shape.num_groups = kernel.groups * ceil_div(kernel.outputs / kernel.groups, engines.output_channels);
  shape.active = std::min(engines.count, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(shape.num_groups))));
  shape.passes = ceil_div(shape.num_groups, shape.active);
  const int64_t per_pass = taps(kernel) * kernel.inputs * kernel.bits;
  if (shape.passes > kMost / per_pass / engines.output_channels / engines.count)
    fail("pack", "got a packed kernel of more than 2^40 bits");
  const int64_t bytes = ceil_div(shape.passes * per_pass * engines.output_channels, 8);
  shape.stride = ceil_div(bytes, engines.alignment) * engines.alignment;
  return shape;
}

std::vector<uint8_t> pack(const Kernel& kernel, const Engines& engines, std::string_view layout,
                          std::span<const uint8_t> weights) {
  const Shape shape = packed_shape(kernel, engines);
  need_bytes("weights", weights.size(), weight_bytes(kernel));
  std::vector<uint8_t> packed(shape.stride * shape.active);
  for_each(kernel, engines, shape, layout, [&](int64_t from, int64_t to, int64_t engine) {
    put_bits(&packed[engine * shape.stride], to, kernel.bits, get_bits(weights.data(), from, kernel.bits));
  });
  return packed;
}

std::vector<uint8_t> unpack(const Kernel& kernel, const Engines& engines, std::string_view layout,
                            std::span<const uint8_t> packed) {
  const Shape shape = packed_shape(kernel, engines);
  need_bytes("packed weights", packed.size(), shape.stride * shape.active);
  std::vector<uint8_t> weights(weight_bytes(kernel));
  for_each(kernel, engines, shape, layout, [&](int64_t to, int64_t from, int64_t engine) {
    put_bits(weights.data(), to, kernel.bits, get_bits(&packed[engine * shape.stride], from, kernel.bits));
  });
  return weights;
}

}  // namespace hexane::pack
