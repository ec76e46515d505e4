// Merges axes of elementwise loops and walks the remaining axes.
#include "cpu/loop.h"

#include <algorithm>

#include "cpu/elementwise/elementwise.h"
#include "cpu/operand.h"
#include "cpu/region.h"

namespace hexane::cpu {

void check_broadcast(const char* kernel, const Call& call, size_t num_inputs, size_t num_used) {
  if (call.inputs.size() != num_inputs || call.outputs.size() != 1)
    fail(kernel, "operands: got ", call.inputs.size(), " inputs and ", call.outputs.size(), " outputs, need ",
         num_inputs, " and 1");
  const Tensor& out = call.outputs[0];
  check_written(kernel, "output", out);
  int64_t widest[8];
  std::fill(widest, widest + 8, 1);
  for (size_t i = 0; i < num_used; ++i) {
    const Tensor& in = call.inputs[i];
    check_operand(kernel, "input", in);
    const int lead = out.rank - in.rank;
    for (int axis = 0; axis < in.rank; ++axis) {
      if (lead < 0 || (in.shape[axis] != 1 && in.shape[axis] != out.shape[lead + axis]))
        fail(kernel, "input ", i, " shape: got ", shape_text(in), ", need one that broadcasts to ", shape_text(out));
      if (in.shape[axis] != 1) widest[lead + axis] = in.shape[axis];
    }
  }
  for (int axis = 0; axis < out.rank; ++axis)
    if (widest[axis] != out.shape[axis])
      fail(kernel, "output axis ", axis, ": got extent ", out.shape[axis], ", need ", widest[axis]);
}

Loop make_loop(const Call& call, size_t num_used, int axis, Range range) {
  const Tensor& out = call.outputs[0];
  Loop loop;
  loop.num_operands = static_cast<int>(num_used) + 1;
  const Tensor* operands[Loop::kMaxOperands];
  for (size_t i = 0; i < num_used; ++i) operands[i] = &call.inputs[i];
  operands[num_used] = &out;
  std::fill(loop.offsets, loop.offsets + Loop::kMaxOperands, 0);

  int rank = 0;
  for (int i = 0; i < out.rank; ++i) {
    const int64_t extent = i == axis ? range.end - range.begin : out.shape[i];
    int64_t strides[Loop::kMaxOperands];
    for (int k = 0; k < loop.num_operands; ++k) {
      const int own = i - (out.rank - operands[k]->rank);
      strides[k] = own < 0 || (operands[k]->shape[own] == 1 && out.shape[i] != 1) ? 0 : operands[k]->strides[own];
      if (i == axis) loop.offsets[k] = range.begin * strides[k];
    }
    if (extent == 1) continue;
    bool merges = rank > 0;
    for (int k = 0; merges && k < loop.num_operands; ++k) merges = loop.strides[k][rank - 1] == strides[k] * extent;
    if (!merges) loop.shape[rank++] = 1;
    loop.shape[rank - 1] *= extent;
    for (int k = 0; k < loop.num_operands; ++k) loop.strides[k][rank - 1] = strides[k];
  }
  if (rank == 0) {
    loop.shape[rank++] = 1;
    for (int k = 0; k < loop.num_operands; ++k) loop.strides[k][0] = item_bytes(*operands[k]);
  }
  loop.rank = rank;
  return loop;
}

void walk(const Loop& loop, const Call& call, Row row, const void* state) {
  std::byte* pointers[Loop::kMaxOperands];
  int64_t inner[Loop::kMaxOperands];
  const int last = loop.rank - 1;
  for (int k = 0; k < loop.num_operands; ++k) {
    pointers[k] = (k + 1 < loop.num_operands ? call.inputs[k] : call.outputs[0]).data + loop.offsets[k];
    inner[k] = loop.strides[k][last];
  }
  if (loop.rank == 1 && loop.shape[0] > 0) return row(pointers, inner, loop.shape[0], state);  // the common case
  if (std::find(loop.shape, loop.shape + loop.rank, 0) != loop.shape + loop.rank) return;
  int64_t index[8] = {};
  for (;;) {
    row(pointers, inner, loop.shape[last], state);
    int axis = last - 1;
    for (; axis >= 0; --axis) {
      const bool carry = ++index[axis] == loop.shape[axis];
      for (int k = 0; k < loop.num_operands; ++k)
        pointers[k] += loop.strides[k][axis] * (carry ? 1 - loop.shape[axis] : 1);
      if (!carry) break;
      index[axis] = 0;
    }
    if (axis < 0) return;
  }
}

Box broadcast_needs(const Call& call, int input, const Box& out) {
  return aligned(call.inputs[static_cast<size_t>(input)], out);
}

}  // namespace hexane::cpu
