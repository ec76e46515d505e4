#include "plan/lifetimes.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "plan/reader.h"

namespace hexane::plan {
namespace {

struct Axis {
  uint64_t stride;
  uint64_t count;
};

// Returns the axes with more than one index, the smallest stride first.
std::vector<Axis> axes(const PlanTensor& tensor) {
  std::vector<Axis> result;
  for (uint32_t axis = 0; axis < tensor.rank; ++axis) {
    const int64_t count = axis == 1 && tensor.ring ? tensor.ring : tensor.shape[axis];
    if (count > 1) result.push_back({static_cast<uint64_t>(tensor.strides[axis]), static_cast<uint64_t>(count)});
  }
  std::sort(result.begin(), result.end(), [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  return result;
}

uint64_t item_bytes(DType dtype) { return (static_cast<uint64_t>(info(dtype).bits) + 7) / 8; }

// Returns the bytes of one row if all rows begin at multiples of `pitch` from the first; 0 otherwise.
uint64_t row_bytes(const std::vector<Axis>& axes, uint64_t item, uint64_t pitch) {
  uint64_t bytes = item;
  for (const Axis& axis : axes) {
    if (axis.stride % pitch == 0) continue;
    if (axis.stride > pitch) return 0;
    bytes += axis.stride * (axis.count - 1);
  }
  return bytes <= pitch ? bytes : 0;
}

bool take_turns(const PlanTensor& a, DType a_dtype, const PlanTensor& b, DType b_dtype) {
  const std::vector<Axis> a_axes = axes(a), b_axes = axes(b);
  for (const auto* candidates : {&a_axes, &b_axes})
    for (const Axis& candidate : *candidates) {
      const uint64_t pitch = candidate.stride;
      if (pitch == 0) continue;
      const uint64_t a_bytes = row_bytes(a_axes, item_bytes(a_dtype), pitch);
      const uint64_t b_bytes = row_bytes(b_axes, item_bytes(b_dtype), pitch);
      if (!a_bytes || !b_bytes) continue;
      // The distance from a's row to b's and from b's to a's, modulo the pitch.
      const uint64_t there = (b.offset % pitch + pitch - a.offset % pitch) % pitch;
      const uint64_t back = pitch - there;
      if (there >= a_bytes && back >= b_bytes) return true;
    }
  return false;
}

// True if every element is written. The caller knows that no single interval covers all axes below `level`. Slices
// inside one interval are skipped together, so the time depends on the number of intervals. Overlapping slices count as
// not written.
template <typename End>
bool covers_slices(const std::vector<Axis>& outer, const std::vector<uint64_t>& inner, size_t level, uint64_t offset,
                   const End& end) {
  if (level == 0 || outer[level - 1].stride < inner[level - 1]) return false;
  const auto [stride, count] = outer[level - 1];
  const uint64_t bytes = inner[level - 1];
  for (uint64_t i = 0; i < count;) {
    const uint64_t begin = offset + i * stride, written = end(begin);
    if (written >= begin + bytes)
      i += (written - begin - bytes) / stride + 1;
    else if (covers_slices(outer, inner, level - 1, begin, end))
      ++i;
    else
      return false;
  }
  return true;
}

}  // namespace

void WrittenBytes::add(uint64_t offset, uint64_t bytes) {
  if (bytes == 0) return;
  uint64_t begin = offset, end = offset + bytes;
  auto at = ends_.upper_bound(begin);
  if (at != ends_.begin() && std::prev(at)->second >= begin) --at;
  while (at != ends_.end() && at->first <= end) {
    begin = std::min(begin, at->first);
    end = std::max(end, at->second);
    at = ends_.erase(at);
  }
  ends_.emplace(begin, end);
}

void WrittenBytes::remove(uint64_t offset, uint64_t bytes) {
  if (bytes == 0) return;
  const uint64_t last = offset + bytes;
  auto at = ends_.upper_bound(offset);
  if (at != ends_.begin() && std::prev(at)->second > offset) --at;
  while (at != ends_.end() && at->first < last) {
    const auto [begin, end] = *at;
    at = ends_.erase(at);
    if (begin < offset) ends_.emplace(begin, offset);
    if (end > last) ends_.emplace(last, end);
  }
}

uint64_t WrittenBytes::end(uint64_t offset) const {
  const auto after = ends_.upper_bound(offset);
  return after == ends_.begin() ? offset : std::max(offset, std::prev(after)->second);
}

bool WrittenBytes::covers(uint64_t offset, uint64_t bytes) const { return bytes == 0 || end(offset) >= offset + bytes; }

bool WrittenBytes::covers(const PlanTensor& view, DType dtype) const {
  if (covers(view.offset, extent_bytes(view, dtype))) return true;
  std::vector<Axis> outer = axes(view);
  outer.erase(std::remove_if(outer.begin(), outer.end(), [](const Axis& a) { return a.stride == 0; }), outer.end());
  std::vector<uint64_t> inner{item_bytes(dtype)};  // bytes that the axes before each axis span
  for (const Axis& axis : outer) inner.push_back(inner.back() + axis.stride * (axis.count - 1));
  return covers_slices(outer, inner, outer.size(), view.offset, [this](uint64_t offset) { return end(offset); });
}

bool is_same_view(const PlanTensor& a, const PlanTensor& b) {
  if (a.space != b.space || a.offset != b.offset || a.ring != b.ring) return false;
  uint32_t i = 0, j = 0;
  for (;; ++i, ++j) {
    while (i < a.rank && a.shape[i] == 1) ++i;
    while (j < b.rank && b.shape[j] == 1) ++j;
    if (i == a.rank || j == b.rank) return i == a.rank && j == b.rank;
    if (a.shape[i] != b.shape[j] || a.strides[i] != b.strides[j]) return false;
  }
}

bool may_overlap(const PlanTensor& a, DType a_dtype, const PlanTensor& b, DType b_dtype) {
  if (a.space != b.space) return false;
  const uint64_t a_bytes = extent_bytes(a, a_dtype), b_bytes = extent_bytes(b, b_dtype);
  if (a_bytes == 0 || b_bytes == 0 || a.offset + a_bytes <= b.offset || b.offset + b_bytes <= a.offset) return false;
  return !take_turns(a, a_dtype, b, b_dtype);
}

bool overlaps_itself(const PlanTensor& tensor, DType dtype) {
  if (extent_bytes(tensor, dtype) == 0) return false;
  uint64_t inner = item_bytes(dtype);
  for (const Axis& axis : axes(tensor)) {
    if (axis.stride < inner) return true;
    inner += axis.stride * (axis.count - 1);
  }
  return false;
}

}  // namespace hexane::plan
