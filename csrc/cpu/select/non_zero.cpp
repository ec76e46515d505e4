// non_zero: the coordinates of elements that are not zero, in row-major order, and their number. The output has a row
// for each element of the input; unused rows are zero.
#include <algorithm>

#include "cpu/operand.h"
#include "cpu/select/sort_key.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

Prepared prepare(const Call& call) {
  const Tensor &in = call.inputs[0], &indices = call.outputs[0], &length = call.outputs[1];
  check_dense("non_zero", "input", in);
  check_dense("non_zero", "indices", indices);
  check_dense("non_zero", "length", length);
  if (indices.rank != 2 || indices.shape[0] != in.rank || indices.shape[1] != in.size())
    fail("non_zero", "indices: got the shape ", shape_text(indices), ", need (", in.rank, ", ", in.size(), ")");
  if (length.rank != 0) fail("non_zero", "length: got the shape ", shape_text(length), ", need a number");
  return nullptr;
}

void run(const Call& call, int, Range, std::byte*, const std::byte*) {
  const Tensor& in = call.inputs[0];
  const int64_t capacity = in.size(), item = item_bytes(in);
  int64_t* const indices = call.outputs[0].as<int64_t>();
  const std::byte zero[8] = {};
  const uint64_t nothing = sort_key(in.dtype, zero);  // the key of 0 and of -0
  int64_t at[8] = {}, count = 0;
  for (int64_t i = 0; i < capacity; ++i) {
    if (sort_key(in.dtype, in.data + i * item) != nothing) {
      for (int axis = 0; axis < in.rank; ++axis) indices[axis * capacity + count] = at[axis];
      ++count;
    }
    for (int axis = in.rank - 1; axis >= 0 && ++at[axis] == in.shape[axis]; --axis) at[axis] = 0;
  }
  for (int axis = 0; axis < in.rank; ++axis)
    std::fill(indices + axis * capacity + count, indices + (axis + 1) * capacity, 0);
  *call.outputs[1].as<int64_t>() = count;
}

int64_t cost(const Call& call) { return 50 + 3 * call.inputs[0].size() + call.outputs[0].size(); }

constexpr Kernel kTable[] = {{
    .name = "non_zero",
    .dtypes = "*->int64,int64",
    .accepts = "dense",
    .prepare = prepare,
    .cost = cost,
    .run = run,
}};

}  // namespace

std::span<const Kernel> non_zero_table() { return kTable; }

}  // namespace hexane::cpu
