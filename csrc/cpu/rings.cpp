// Runs kernels on rings that the kernels treat as whole tensors.
#include "cpu/rings.h"

#include <algorithm>

#include "cpu/region.h"

namespace hexane::cpu {
namespace {

constexpr size_t kMostOperands = 32;

// True if the kernel reads operand i as a ring. i counts inputs, then outputs.
bool reads_itself(const Kernel& kernel, size_t i, size_t num_inputs) {
  return (kernel.reads_ring && i == 0) || (kernel.in_order && i == num_inputs);
}

// True if begin() packs the operand (weights, keys, values): begin() reads all rows before any range is known.
bool packed(const Kernel& kernel, size_t i) { return kernel.begin && (i == 1 || i == 2); }

Range needed_rows(const Kernel& kernel, const Call& call, int input, Range rows) {
  Box box = whole(call.outputs[0]);
  box[1] = rows;
  return needed_box(kernel, call, input, box)[1];
}

}  // namespace

bool has_rings(const Call& call) {
  const auto is_ring = [](const Tensor& t) { return t.ring != 0; };
  return std::any_of(call.inputs.begin(), call.inputs.end(), is_ring) ||
         std::any_of(call.outputs.begin(), call.outputs.end(), is_ring);
}

std::vector<uint8_t> rings_to_move(const Kernel& kernel, const Call& call) {
  const size_t num_inputs = call.inputs.size();
  std::vector<uint8_t> found;
  for (size_t i = 0; i < std::min(num_inputs + call.outputs.size(), kMostOperands); ++i) {
    const Tensor& tensor = i < num_inputs ? call.inputs[i] : call.outputs[i - num_inputs];
    if (tensor.ring && !reads_itself(kernel, i, num_inputs)) found.push_back(static_cast<uint8_t>(i));
  }
  return found;
}

void check_rings(const Kernel& kernel, const Call& call, Range rows) {
  Cuts cuts;
  if (kernel.cuts) kernel.cuts(call, cuts);
  const Cut* cut = std::find_if(cuts.items, cuts.items + cuts.count, [](const Cut& c) { return c.axis == 1; });
  if (cut == cuts.items + cuts.count) fail(kernel.name, "rings: got a call that cannot be cut along axis 1");
  const size_t num_operands = call.inputs.size() + call.outputs.size();
  if (num_operands > kMostOperands)
    fail(kernel.name, "rings: got ", num_operands, " operands, need at most ", kMostOperands);
  for (size_t i = 0; i < num_operands; ++i) {
    const bool is_input = i < call.inputs.size();
    const Tensor& tensor = is_input ? call.inputs[i] : call.outputs[i - call.inputs.size()];
    if (!tensor.ring || (kernel.in_order && !is_input)) continue;
    const int input = static_cast<int>(i);
    const Range used = is_input ? needed_rows(kernel, call, input, rows) : rows;
    if (used.end - used.begin > tensor.ring)
      fail(kernel.name, "operand ", i, ": got a ring of ", tensor.ring, " rows, need ", used.end - used.begin);
    if (reads_itself(kernel, i, call.inputs.size())) continue;
    const Range first{rows.begin, std::min(rows.begin + 1, rows.end)};
    if (is_input && (packed(kernel, i) || used != rows || needed_rows(kernel, call, input, first) != first))
      fail(kernel.name, "operand ", i, ": got a ring of ", tensor.ring, " rows, need all rows");
    if (tensor.ring % cut->grain && tensor.ring < cut->extent)
      fail(kernel.name, "operand ", i, ": got a ring of ", tensor.ring, " rows, need a multiple of ", cut->grain);
  }
}

void run_rows(const Kernel& kernel, const Call& call, std::span<const uint8_t> moving, const Call& piece,
              Tensor* operands, Range rows, std::byte* scratch, const std::byte* shared) {
  const size_t num_inputs = call.inputs.size();
  for (int64_t begin = rows.begin; begin < rows.end;) {
    int64_t end = rows.end;
    for (const uint8_t i : moving) {
      const Tensor& tensor = i < num_inputs ? call.inputs[i] : call.outputs[i - num_inputs];
      const int64_t turn =
          tensor.ring == 1 ? begin : begin / tensor.ring * tensor.ring;  // the first row of this pass through the ring
      operands[i].data = tensor.data - turn * tensor.strides[1];
      operands[i].ring = 0;
      end = std::min(end, turn + tensor.ring);
    }
    kernel.run(piece, 1, {begin, end}, scratch, shared);
    begin = end;
  }
}

void run_rows(const Kernel& kernel, const Call& call, std::span<const uint8_t> moving, Range rows, std::byte* scratch,
              const std::byte* shared) {
  const size_t num_inputs = call.inputs.size(), num_outputs = call.outputs.size();
  Tensor operands[kMostOperands];
  std::copy(call.inputs.begin(), call.inputs.end(), operands);
  std::copy(call.outputs.begin(), call.outputs.end(), operands + num_inputs);
  Call piece = call;
  piece.inputs = {operands, num_inputs};
  piece.outputs = {operands + num_inputs, num_outputs};
  run_rows(kernel, call, moving, piece, operands, rows, scratch, shared);
}

}  // namespace hexane::cpu
