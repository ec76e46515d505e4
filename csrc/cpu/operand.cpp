// Checks that prepare() functions share.
#include "cpu/operand.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/bf16.h"
#include "core/fp16.h"

namespace hexane::cpu {

std::string shape_text(const Tensor& tensor) {
  std::string text = "(";
  for (int i = 0; i < tensor.rank; ++i) text += std::string(i ? ", " : "") + std::to_string(tensor.shape[i]);
  return text + (tensor.rank == 1 ? ",)" : ")");
}

void check_operand(const char* kernel, const char* operand, const Tensor& tensor) {
  if (!tensor.present()) fail(kernel, operand, ": got none, need an operand");
  if (tensor.rank > 8) fail(kernel, operand, " rank: got ", tensor.rank, ", need at most 8");
  if (info(tensor.dtype).bits % 8) fail(kernel, operand, " dtype: got ", info(tensor.dtype).name, ", need whole bytes");
  if (tensor.ring < 0 || (tensor.ring && tensor.rank < 2))
    fail(kernel, operand, ": got a ring of ", tensor.ring, " rows for rank ", tensor.rank, ", need rows of axis 1");
  int64_t bytes = item_bytes(tensor);
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] < 0 || tensor.strides[i] < 0)
      fail(kernel, operand, " axis ", i, ": got extent ", tensor.shape[i], " and stride ", tensor.strides[i],
           ", need neither negative");
    // An extent of 0 counts as 1, so that the product of any of the extents fits as well.
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(tensor.shape[i], 1), &bytes))
      fail(kernel, operand, ": got shape ", shape_text(tensor), ", need less than 2^63 bytes");
  }
}

void check_dense(const char* kernel, const char* operand, const Tensor& tensor) {
  check_operand(kernel, operand, tensor);
  int64_t stride = item_bytes(tensor);
  for (int i = tensor.rank - 1; i >= 0; --i) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != stride && tensor.size() != 0)
      fail(kernel, operand, " axis ", i, ": got stride ", tensor.strides[i], ", need ", stride);
    stride *= std::max<int64_t>(tensor.shape[i], 1);
  }
}

void check_written(const char* kernel, const char* operand, const Tensor& tensor) {
  check_operand(kernel, operand, tensor);
  const auto kept = [&](int i) {
    return i == 1 && tensor.ring ? std::min(tensor.ring, tensor.shape[1]) : tensor.shape[i];
  };
  int axes[8];  // axes in the order of their strides, smallest first
  int count = 0;
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] == 0) return;
    if (kept(i) == 1) continue;
    int at = count++;
    for (; at > 0 && tensor.strides[axes[at - 1]] > tensor.strides[i]; --at) axes[at] = axes[at - 1];
    axes[at] = i;
  }
  int64_t extent = item_bytes(tensor);  // bytes spanned by an element and the axes so far
  for (int i = 0; i < count; ++i) {
    const int64_t stride = tensor.strides[axes[i]];
    int64_t span;
    if (stride < extent)
      fail(kernel, operand, " axis ", axes[i], ": got stride ", stride, ", need ", extent, " or more");
    if (__builtin_mul_overflow(kept(axes[i]) - 1, stride, &span) || __builtin_add_overflow(span, extent, &extent))
      fail(kernel, operand, ": got shape ", shape_text(tensor), ", need less than 2^63 bytes");
  }
}

void check_image(const char* kernel, const char* operand, const Tensor& image) {
  if (image.rank < 1) fail(kernel, operand, ": got rank ", image.rank, ", need channels as the last axis");
  if (std::find(image.shape, image.shape + image.rank, 0) != image.shape + image.rank) return;  // nothing is read
  const int last = image.rank - 1;
  const int64_t bytes = item_bytes(image);
  if (image.shape[last] > 1 && image.strides[last] != bytes)
    fail(kernel, operand, ": got a channel stride of ", image.strides[last], " bytes, need ", bytes);
  for (int axis = 0; axis < last; ++axis)
    if (image.strides[axis] % bytes)
      fail(kernel, operand, ": got a stride of ", image.strides[axis], " bytes, need a multiple of ", bytes);
}

void check_same_shape(const char* kernel, const Tensor& got, const Tensor& need) {
  if (!std::equal(got.shape, got.shape + got.rank, need.shape, need.shape + need.rank))
    fail(kernel, "shape: got ", shape_text(got), ", need ", shape_text(need));
}

int check_axis(const char* kernel, int64_t axis, int rank) {
  if (axis < -rank || axis >= rank) fail(kernel, "axis: got ", axis, ", need ", -rank, " to ", rank - 1);
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

void check_list(const char* kernel, const char* attribute, const IntList& list) {
  if (list.count < 0 || list.count > 8) fail(kernel, attribute, ": got ", list.count, " values, need 0 to 8");
}

uint64_t scalar_bits(const char* kernel, DType dtype, double value) {
  // Truncates the value to an integer in [low, high). Doubles hold `low` and `high` exactly.
  const auto integer = [&](double low, double high) {
    const double whole = std::trunc(value);
    if (!(whole >= low && whole < high))
      fail(kernel, "value: got ", value, ", need what ", info(dtype).name, " can hold");
    return whole < 0 ? static_cast<uint64_t>(static_cast<int64_t>(whole)) : static_cast<uint64_t>(whole);
  };
  switch (dtype) {
    case DType::kBool:
      return value != 0;
    case DType::kInt8:
      return integer(-0x1p7, 0x1p7);
    case DType::kUint8:
      return integer(0, 0x1p8);
    case DType::kInt16:
      return integer(-0x1p15, 0x1p15);
    case DType::kUint16:
      return integer(0, 0x1p16);
    case DType::kInt32:
      return integer(-0x1p31, 0x1p31);
    case DType::kUint32:
      return integer(0, 0x1p32);
    case DType::kInt64:
      return integer(-0x1p63, 0x1p63);
    case DType::kUint64:
      return integer(0, 0x1p64);
    case DType::kFp16:
      return to_fp16(static_cast<float>(value)).bits;
    case DType::kBf16:
      return to_bf16(static_cast<float>(value)).bits;
    case DType::kFp32:
      return std::bit_cast<uint32_t>(static_cast<float>(value));
    case DType::kFp64:
      return std::bit_cast<uint64_t>(value);
    default:
      fail(kernel, "dtype: got ", info(dtype).name, ", need one of whole bytes, of 16 bits or more if floating");
  }
}

void cut_lines(const Call& call, Cuts& cuts) {
  const Tensor& out = call.outputs[0];
  for (int axis = 0; axis < out.rank; ++axis)
    if (out.shape[axis] > 1) cuts.add(axis, out.shape[axis], axis == out.rank - 1 ? 64 / item_bytes(out) : 1);
}

}  // namespace hexane::cpu
