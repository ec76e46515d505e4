// Plans and runs strided copies.
#include "cpu/move/strided_copy.h"

#include <algorithm>
#include <cstring>

namespace hexane::cpu {
namespace {

void copy_nothing_else(std::byte* out, const std::byte* in, const StridedCopy& copy) {
  std::memcpy(out, in, static_cast<size_t>(copy.unit));
}

// Sorts the axes by output stride, drops axes of extent 1 and merges neighbouring axes that form one axis in input and
// output.
int coalesce(const CopyAxis* axes, int num_axes, CopyAxis* result) {
  int count = 0;
  for (int i = 0; i < num_axes; ++i) {
    if (axes[i].extent == 1) continue;
    int at = count++;
    for (; at > 0 && result[at - 1].out < axes[i].out; --at) result[at] = result[at - 1];
    result[at] = axes[i];
  }
  int last = 0;
  for (int i = 1; i < count; ++i) {
    CopyAxis& outer = result[last];
    if (outer.in == result[i].in * result[i].extent && outer.out == result[i].out * result[i].extent)
      outer = {outer.extent * result[i].extent, result[i].in, result[i].out};
    else
      result[++last] = result[i];
  }
  return count ? last + 1 : 0;
}

}  // namespace

StridedCopy plan_copy(const CopyAxis* axes, int num_axes, int64_t item_bytes) {
  StridedCopy copy{nullptr, item_bytes, {1, 0, 0}, {1, 0, 0}, 0, {}};
  for (int i = 0; i < num_axes; ++i)
    if (axes[i].extent <= 0) return copy;
  CopyAxis* left = copy.outer;
  int count = coalesce(axes, num_axes, left);
  if (count && left[count - 1].in == item_bytes && left[count - 1].out == item_bytes) copy.unit *= left[--count].extent;
  if (count == 0) {
    copy.body = copy_nothing_else;
    return copy;
  }
  copy.cols = left[--count];
  copy.body = units_body(copy.unit);
  const bool dense = copy.cols.out == copy.unit;
  int rows = count - 1;
  if (dense && copy.cols.in == 0) {
    copy.body = fill_body(copy.unit);
  } else if (dense && transpose_body(copy.unit)) {
    for (int i = 0; i < count; ++i)
      if (left[i].in == copy.unit) {
        rows = i;
        copy.body = transpose_body(copy.unit);
      }
  }
  if (rows >= 0) {
    copy.rows = left[rows];
    std::move(left + rows + 1, left + count, left + rows);
    --count;
  }
  copy.num_outer = count;
  return copy;
}

void run_copy(const StridedCopy& copy, std::byte* out, const std::byte* in) {
  if (!copy.body) return;
  if (copy.num_outer == 0) return copy.body(out, in, copy);
  int64_t index[8] = {};
  for (;;) {
    copy.body(out, in, copy);
    int axis = copy.num_outer - 1;
    for (; axis >= 0; --axis) {
      const CopyAxis& a = copy.outer[axis];
      out += a.out;
      in += a.in;
      if (++index[axis] < a.extent) break;
      out -= a.extent * a.out;
      in -= a.extent * a.in;
      index[axis] = 0;
    }
    if (axis < 0) return;
  }
}

}  // namespace hexane::cpu
