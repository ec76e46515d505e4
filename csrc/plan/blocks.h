// Verifies packed weights: each block unpacks before its first reader, to bytes that no other operand touches until
// its last reader.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "plan/reader.h"

namespace hexane::plan {

// Keeps the blocks that are live while a caller visits the steps in order.
class LiveBlocks {
 public:
  // Throws Error unless each block, without regard to other tensors, is valid. The loops must have been verified.
  explicit LiveBlocks(const Plan& plan);

  // Returns the blocks that are unpacked before this step, the next one to visit.
  std::span<const PlanBlock> begin(size_t step);

  // Throws Error if the step reads packed weights that are not unpacked, or if another operand shares bytes with a
  // block.
  void check_operand(const std::string& where, const PlanTensor& tensor) const;

 private:
  using ByOffset = std::map<uint64_t, size_t>;  // rows of live blocks, by their offset

  void insert(size_t row);

  const Plan& plan_;
  size_t next_ = 0;
  std::vector<ByOffset> in_arena_;  // by space
  ByOffset in_weights_;
  std::multimap<uint64_t, size_t> by_end_;  // blocks by the step after their last step
};

// Returns the contents of the space of kind "weights", with all blocks unpacked.
void unpack_weights(const Plan& plan, std::span<std::byte> to);

}  // namespace hexane::plan
