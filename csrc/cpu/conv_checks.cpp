// Checks and packing that conv and conv_transpose share.
#include "cpu/conv.h"

namespace hexane::cpu {

int64_t window_attribute(const char* kernel, const IntList& list, int64_t index, int64_t count, int64_t least,
                         const char* what) {
  if (list.count != count) fail(kernel, what, ": got ", list.count, " values, need ", count);
  const int64_t value = list.values[index];
  if (value < least || value > kMaxWindow) fail(kernel, what, ": got ", value, ", need ", least, " to ", kMaxWindow);
  return value;
}

void check_image(const char* kernel, const char* what, const Tensor& image) {
  if (image.size() == 0) return;
  const int last = image.rank - 1;
  if (image.shape[last] > 1 && image.strides[last] != item_bytes(image))
    fail(kernel, what, ": got a last stride of ", image.strides[last], " bytes, need ", item_bytes(image));
  for (int axis = 0; axis < last; ++axis)
    if (image.strides[axis] % item_bytes(image))
      fail(kernel, what, ": got a stride of ", image.strides[axis], " bytes, need a multiple of ", item_bytes(image));
}

void pack_group_bias(const Tensor& bias, int64_t channels, int64_t width, float* to) {
  for (int64_t begin = 0; begin < channels; begin += width, to += ceil_div(width, kPanelLanes) * kPanelLanes) {
    const int64_t stride = bias.strides[bias.rank - 1];
    const Tensor part{bias.data + begin * stride, bias.dtype, 1, bias.constant, 0, &width, &stride};
    pack_bias(part, width, to);
  }
}

}  // namespace hexane::cpu
