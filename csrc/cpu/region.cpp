// Computes boxes that many kernels need.
#include "cpu/region.h"

#include <algorithm>

namespace hexane::cpu {

Box whole(const Tensor& tensor) {
  Box box{std::max(tensor.rank, 0), {}};
  for (int i = 0; i < box.rank; ++i) box[i] = {0, tensor.shape[i]};
  return box;
}

Box needed_box(const Kernel& kernel, const Call& call, int input, const Box& out) {
  const Tensor& tensor = call.inputs[static_cast<size_t>(input)];
  for (int i = 0; i < out.rank; ++i)
    if (out[i].begin >= out[i].end) return {std::max(tensor.rank, 0), {}};
  return tensor.present() && kernel.needs ? kernel.needs(call, input, out) : whole(tensor);
}

Box aligned(const Tensor& tensor, const Box& out) {
  Box box = whole(tensor);
  for (int i = 0; i < box.rank; ++i)
    if (const int own = i + out.rank - box.rank; tensor.shape[i] != 1 && own >= 0) box[i] = out[own];
  return box;
}

Box all_along(const Tensor& tensor, int axis, const Box& out) {
  Box box = out;
  box[axis] = {0, tensor.shape[axis]};
  return box;
}

Box per_column(const Tensor& tensor, const Box& out) {
  Box box = whole(tensor);
  if (const int last = box.rank - 1; last >= 0 && tensor.shape[last] != 1) box[last] = out[out.rank - 1];
  return box;
}

Range reached(Range out, int64_t stride, int64_t before, int64_t reach, int64_t extent) {
  // Windows that end before the first index, or begin after the last, touch no index.
  const int64_t first = before < reach ? 0 : (before - reach) / stride + 1;
  const int64_t end = extent + before > 0 ? (extent + before - 1) / stride + 1 : 0;
  const Range touching{std::max(out.begin, first), std::min(out.end, end)};
  const int64_t begin = std::clamp<int64_t>(touching.begin * stride - before, 0, extent);
  if (touching.begin >= touching.end) return {begin, begin};
  return {begin, std::clamp<int64_t>((touching.end - 1) * stride - before + reach, begin, extent)};
}

Box same_box(const Call&, int, const Box& out) { return out; }

}  // namespace hexane::cpu
