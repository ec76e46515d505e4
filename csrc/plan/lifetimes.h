// The bytes that a view touches and the bytes that have been written, for the verification of plans.
#pragma once

#include <map>

#include "core/dtype.h"
#include "plan/plan.h"

namespace hexane::plan {

// The bytes of one space that steps have written so far, as disjoint intervals.
class WrittenBytes {
 public:
  void add(uint64_t offset, uint64_t bytes);
  void remove(uint64_t offset, uint64_t bytes);
  bool covers(uint64_t offset, uint64_t bytes) const;
  // True if every element of the view is written; gaps between its rows may be unwritten.
  bool covers(const PlanTensor& view, DType dtype) const;

 private:
  uint64_t end(uint64_t offset) const;  // Returns the end of the interval that contains `offset`, or else `offset`.
  std::map<uint64_t, uint64_t> ends_;   // Begin -> end of an interval.
};

// True if both views have the same bytes element by element. Axes of extent 1 do not count.
bool is_same_view(const PlanTensor& a, const PlanTensor& b);

// False only if the views certainly share no byte: their ranges are disjoint, or they alternate in rows of a common
// pitch, as the two halves of a concatenated axis do.
bool may_overlap(const PlanTensor& a, DType a_dtype, const PlanTensor& b, DType b_dtype);

// True if two elements of the view share a byte.
bool overlaps_itself(const PlanTensor& tensor, DType dtype);

}  // namespace hexane::plan
