// Shared by the kernels that read or write elements at indices known only at run time.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "cpu/move/strided_copy.h"
#include "cpu/operand.h"

namespace hexane::cpu {

// An axis that a walk steps along in all three tensors: the near side (output of a gather, updates of a scatter), the
// indices, and the far side (data of a gather, output of a scatter).
struct WalkAxis {
  Range range;
  int64_t near;   // Byte stride in the near side.
  int64_t index;  // Byte stride in the indices.
  int64_t far;    // Byte stride in the far side; 0 where an index gives the position.
};

// An axis of the far side whose position comes from an index.
struct Coordinate {
  int64_t extent;
  int64_t far;
  Range accepted;  // indices of this piece; other indices belong to another piece of the call
};

// Copies between far[coordinates(indices), tail] and near[walk, tail].
struct Indexing {
  int num_walk = 0, num_coordinates = 0, num_tail = 0;
  WalkAxis walk[8];
  Coordinate coordinates[8];
  int64_t coordinate_stride = 0;  // Bytes between the coordinates of one element.
  CopyAxis tail[8];               // Strides: CopyAxis::in in the source, CopyAxis::out in the destination.
  int64_t tail_begin = 0;         // Offset in source and destination if a tail axis is cut.
  int64_t far_tail_begin = 0;
  bool wide = false;  // indices are int64
};

inline int64_t read_index(const std::byte* from, bool wide) {
  if (wide) {
    int64_t index;
    std::memcpy(&index, from, sizeof(index));
    return index;
  }
  int32_t index;
  std::memcpy(&index, from, sizeof(index));
  return index;
}

// Calls visit(near offset, far offset) in row-major order; throws Error for an index out of range. kAll: this piece
// accepts every index.
template <bool kAll = false, typename Visit>
void walk(const char* kernel, const Indexing& indexing, const std::byte* indices, Visit visit) {
  int64_t at[8];
  int64_t near = indexing.tail_begin, index = 0, far = indexing.far_tail_begin;
  for (int i = 0; i < indexing.num_walk; ++i) {
    const WalkAxis& a = indexing.walk[i];
    if (a.range.begin >= a.range.end) return;
    at[i] = a.range.begin;
    near += at[i] * a.near;
    index += at[i] * a.index;
    far += at[i] * a.far;
  }
  const int last = indexing.num_walk - 1;
  const WalkAxis line = last >= 0 ? indexing.walk[last] : WalkAxis{{0, 1}, 0, 0, 0};
  const int num_coordinates = indexing.num_coordinates;
  const Coordinate first = indexing.coordinates[0];  // usually the only coordinate: a copy that stays in registers
  const auto walk_line = [=, &indexing](auto is_wide, auto is_single, int64_t near, const std::byte* index,
                                        int64_t far) {
    for (int64_t n = line.range.begin; n < line.range.end; ++n) {
      int64_t target = far;
      bool accepted = true;
      const auto follow = [&](const Coordinate& coordinate, const std::byte* from) {
        const int64_t given = read_index(from, is_wide.value), i = given + (given < 0 ? coordinate.extent : 0);
        if (coordinate.extent == 0) fail(kernel, "index: got ", given, " for an empty axis, which has no elements");
        if (i < 0 || i >= coordinate.extent)
          fail(kernel, "index: got ", given, ", need ", -coordinate.extent, " to ", coordinate.extent - 1);
        if (!kAll) accepted &= i >= coordinate.accepted.begin && i < coordinate.accepted.end;
        target += i * coordinate.far;
      };
      if (is_single || num_coordinates) follow(first, index);
      for (int c = 1; !is_single && c < num_coordinates; ++c)
        follow(indexing.coordinates[c], index + c * indexing.coordinate_stride);
      if (accepted) visit(near, target);
      near += line.near, index += line.index, far += line.far;
    }
  };
  for (;;) {
    const auto with = [&](auto is_wide) {
      if (kAll && num_coordinates == 1)
        walk_line(is_wide, std::true_type(), near, indices + index, far);
      else
        walk_line(is_wide, std::false_type(), near, indices + index, far);
    };
    indexing.wide ? with(std::true_type()) : with(std::false_type());
    int i = last - 1;
    for (; i >= 0; --i) {
      const WalkAxis& a = indexing.walk[i];
      near += a.near;
      index += a.index;
      far += a.far;
      if (++at[i] < a.range.end) break;
      const int64_t extent = a.range.end - a.range.begin;
      near -= extent * a.near;
      index -= extent * a.index;
      far -= extent * a.far;
      at[i] = a.range.begin;
    }
    if (i < 0) return;
  }
}

inline void check_indices(const char* kernel, const Tensor& indices) {
  check_operand(kernel, "indices", indices);
  if (indices.dtype != DType::kInt32 && indices.dtype != DType::kInt64)
    fail(kernel, "indices dtype: got ", info(indices.dtype).name, ", need int32 or int64");
}

}  // namespace hexane::cpu
