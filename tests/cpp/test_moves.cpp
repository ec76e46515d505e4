// Strided copies and pools where Python does not reach: element sizes on every instruction set, tensors that are rings.
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "cpu/move/strided_copy.h"
#include "cpu/region.h"
#include "cpu/rings.h"

using namespace hexane;
using namespace hexane::cpu;

namespace {

// in[rows, cols] to out[cols, rows], both inside larger frames that must not change.
void transposes(int64_t rows, int64_t cols, int64_t item) {
  const int64_t in_stride = (cols + 3) * item, out_stride = (rows + 5) * item;
  std::mt19937 random(1);
  std::vector<unsigned char> in(static_cast<size_t>(rows * in_stride)),
      out(static_cast<size_t>(cols * out_stride), 0xa5);
  for (unsigned char& byte : in) byte = static_cast<unsigned char>(random());
  std::vector<unsigned char> wanted = out;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c)
      std::memcpy(&wanted[static_cast<size_t>(c * out_stride + r * item)],
                  &in[static_cast<size_t>(r * in_stride + c * item)], static_cast<size_t>(item));
  const CopyAxis axes[] = {{cols, item, out_stride}, {rows, in_stride, item}};
  run_copy(plan_copy(axes, 2, item), reinterpret_cast<std::byte*>(out.data()),
           reinterpret_cast<const std::byte*>(in.data()));
  CHECK(out == wanted);
}

struct PoolAttributes {
  IntList kernel_sizes{2, {3, 3}}, strides{2, {2, 1}}, dilations{2, {1, 1}}, pads{4, {1, 1, 1, 1}};
  int64_t ceil_mode = 0;
};

// Rows of the input arrive one by one in a ring that holds the rows of one window; output rows leave by another ring.
void pools_from_a_ring_to_a_ring(int64_t channels) {
  const int64_t in_shape[] = {1, 9, 6, channels}, out_shape[] = {1, 5, 6, channels};
  const int64_t row = 6 * channels * 4;
  const int64_t in_strides[] = {9 * row, row, channels * 4, 4}, out_strides[] = {5 * row, row, channels * 4, 4};
  std::vector<float> in(static_cast<size_t>(9 * row / 4)), whole(static_cast<size_t>(5 * row / 4));
  std::mt19937 random(2);
  for (float& value : in) value = static_cast<float>(random() % 1000);
  const PoolAttributes attributes;
  const auto bytes = [](std::vector<float>& v) { return reinterpret_cast<std::byte*>(v.data()); };
  const Tensor input{bytes(in), DType::kFp32, 4, false, 0, in_shape, in_strides};
  const Tensor output{bytes(whole), DType::kFp32, 4, false, 0, out_shape, out_strides};
  std::vector<int64_t> scratch(16);
  const auto run = [&](const Tensor& from, const Tensor& to, auto before_row) {
    Call call{{&from, 1}, {&to, 1}, &attributes, "", nullptr, nullptr};
    const Kernel& kernel = find_kernel("max_pool", "ieee", call);
    const Prepared prepared = kernel.prepare(call);
    call.prepared = prepared.get();
    CHECK(kernel.scratch(call) <= static_cast<int64_t>(scratch.size() * sizeof(int64_t)));
    for (int64_t r = 0; r < 5; ++r) {
      before_row(needed_box(kernel, call, 0, {4, {{0, 1}, {r, r + 1}, {0, 6}, {0, channels}}})[1]);
      check_rings(kernel, call, {r, r + 1});
      run_rows(kernel, call, rings_to_move(kernel, call), {r, r + 1}, reinterpret_cast<std::byte*>(scratch.data()),
               nullptr);
    }
  };
  run(input, output, [](Range) {});

  std::vector<float> in_ring(static_cast<size_t>(3 * row / 4)), out_ring(static_cast<size_t>(2 * row / 4));
  Tensor ring_input = input, ring_output = output;
  ring_input.data = bytes(in_ring);
  ring_input.ring = 3;
  ring_output.data = bytes(out_ring);
  ring_output.ring = 2;
  int64_t arrived = 0, left = 0;
  const auto leave = [&](int64_t until) {
    for (; left < until; ++left)
      CHECK(!std::memcmp(bytes(out_ring) + left % 2 * row, bytes(whole) + left * row, static_cast<size_t>(row)));
  };
  run(ring_input, ring_output, [&](Range needed) {
    leave(std::max<int64_t>(0, needed.begin / 2));
    for (; arrived < needed.end; ++arrived)
      std::memcpy(bytes(in_ring) + arrived % 3 * row, bytes(in) + arrived * row, static_cast<size_t>(row));
  });
  leave(5);
}

}  // namespace

int main() {
  for (const int64_t item : {1, 2, 4, 8})
    for (const int64_t rows : {1, 2, 3, 4, 7, 16, 33, 70})
      for (const int64_t cols : {1, 3, 5, 8, 31, 64, 100}) transposes(rows, cols, item);
  for (const int64_t channels : {1, 5, 16, 67}) pools_from_a_ring_to_a_ring(channels);
  return checks_failed();
}
