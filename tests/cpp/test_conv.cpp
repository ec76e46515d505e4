// Convolutions over a ring of input rows, row by row as they arrive, give the bits of the whole image.
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "check.h"
#include "cpu/region.h"

using namespace hexane;
using cpu::Tensor;

namespace {

struct ConvAttrs {
  cpu::IntList strides, dilations, pads;
  int64_t groups;
  cpu::Epilogue epilogue;
};

constexpr int64_t kSize = 9, kChannels = 20, kKernel = 3, kRing = 4;

struct Operand {
  std::array<int64_t, 4> shape, strides;
  std::vector<float> values;

  explicit Operand(std::array<int64_t, 4> extents) : shape(extents), strides{} {
    int64_t bytes = 4;
    for (int i = 3; i >= 0; bytes *= shape[i--]) strides[i] = bytes;
    for (int64_t i = 0; i < bytes / 4; ++i) values.push_back(static_cast<float>(i * 7 % 23) / 8 - 1);
  }
  Tensor tensor(bool constant) {
    return {reinterpret_cast<std::byte*>(values.data()), DType::kFp32, 4, constant, 0, shape.data(), strides.data()};
  }
};

void ring_gives_the_bits_of_the_whole_image(int64_t groups, int64_t pad) {
  const int64_t rows = kSize + 2 * pad - kKernel + 1;
  Operand x({1, kSize, kSize, kChannels}), ring({1, kRing, kSize, kChannels}),
      weight({kChannels, kChannels / groups, kKernel, kKernel}), whole({1, rows, rows, kChannels}),
      streamed({1, rows, rows, kChannels});
  const ConvAttrs attrs{{2, {1, 1}}, {2, {1, 1}}, {4, {pad, pad, pad, pad}}, groups, {}};
  for (const bool in_ring : {false, true}) {
    Operand& out = in_ring ? streamed : whole;
    std::array inputs{in_ring ? ring.tensor(false) : x.tensor(false), weight.tensor(true)};
    if (in_ring) {
      inputs[0].shape = x.shape.data();
      inputs[0].ring = kRing;
    }
    const std::array outputs{out.tensor(false)};
    cpu::Call call{inputs, outputs, &attrs, "", nullptr, nullptr};
    const cpu::Kernel& kernel = cpu::find_kernel("conv", "ieee", call);
    const cpu::Prepared prepared = kernel.prepare(call);
    call.prepared = prepared.get();
    std::vector<int64_t> scratch(static_cast<size_t>(kernel.scratch(call)) / 8 + 8);
    auto* bytes = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) / 64 * 64);
    int64_t arrived = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const cpu::Range needed = cpu::needed_box(kernel, call, 0, {4, {{0, 1}, {row, row + 1}, {0, rows}, {0, 1}}})[1];
      for (; in_ring && arrived < needed.end; ++arrived)
        std::memcpy(&ring.values[static_cast<size_t>(arrived % kRing * kSize * kChannels)],
                    &x.values[static_cast<size_t>(arrived * kSize * kChannels)], kSize * kChannels * sizeof(float));
      kernel.run(call, 1, {row, row + 1}, bytes, nullptr);
    }
  }
  CHECK(std::memcmp(whole.values.data(), streamed.values.data(), whole.values.size() * sizeof(float)) == 0);
}

}  // namespace

int main() {
  for (const int64_t groups : {int64_t{1}, int64_t{4}, kChannels})
    for (const int64_t pad : {0, 1}) ring_gives_the_bits_of_the_whole_image(groups, pad);
  return checks_failed();
}
