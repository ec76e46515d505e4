#include "run/elements.h"

#include <cstring>

namespace hexane::run {
namespace {

// Calls visit(offset of an element in the space from the tensor's first byte) in row-major order. A row that a ring no
// longer holds reads as the row that replaced it.
template <typename Visit>
void each_element(const PlanTensor& tensor, Visit visit) {
  int64_t index[PLAN_MAX_RANK] = {};
  int64_t offset = 0;
  for (uint32_t axis = 0; axis < tensor.rank; ++axis)
    if (tensor.shape[axis] == 0) return;
  for (;;) {
    visit(offset);
    int axis = static_cast<int>(tensor.rank) - 1;
    for (; axis >= 0; --axis) {
      const int64_t ring = axis == 1 ? tensor.ring : 0;
      offset += tensor.strides[axis];
      ++index[axis];
      if (ring && index[axis] % ring == 0) offset -= tensor.strides[axis] * ring;
      if (index[axis] < tensor.shape[axis]) break;
      offset -= tensor.strides[axis] * (ring ? tensor.shape[axis] % ring : tensor.shape[axis]);
      index[axis] = 0;
    }
    if (axis < 0) return;
  }
}

size_t item_bytes(const plan::Plan& plan, const PlanTensor& tensor) {
  return static_cast<size_t>(info(plan.dtype(tensor)).bits + 7) / 8;
}

}  // namespace

void pack(const plan::Plan& plan, const PlanTensor& tensor, const std::byte* from, std::byte* packed) {
  const size_t item = item_bytes(plan, tensor);
  each_element(tensor, [&](int64_t offset) {
    std::memcpy(packed, from + offset, item);
    packed += item;
  });
}

void unpack(const plan::Plan& plan, const PlanTensor& tensor, const std::byte* packed, std::byte* to) {
  const size_t item = item_bytes(plan, tensor);
  each_element(tensor, [&](int64_t offset) {
    std::memcpy(to + offset, packed, item);
    packed += item;
  });
}

}  // namespace hexane::run
