// Offsets of the tensors of one partition in on-chip memory. If the tensors do not fit, some are spilled. A spilled
// tensor is in main memory; on chip it takes one tile, in the steps that touch it.
//
//    step      0  1  2  3  4           spilled: a tile at each touch
//    a         ############
//    b            ######         ->    b            #     #
#pragma once

#include <cstdint>
#include <vector>

namespace hexane::alloc {

struct Resident {
  int64_t bytes = 0;
  int64_t tile_bytes = 0;        // Bytes for one touch of the tensor if it is spilled.
  bool made = false;             // The first touch produces the tensor; all other touches read it.
  bool stored = false;           // Main memory gets the tensor even if it is not spilled.
  bool fixed = false;            // The tensor cannot be spilled.
  std::vector<int64_t> touches;  // Steps that touch the tensor, ascending.
};

struct WorkingSet {
  std::vector<Resident> tensors;
  int64_t capacity = 0;   // Capacity in bytes.
  int64_t alignment = 1;  // Alignment in bytes, a power of two.
};

struct Placement {
  std::vector<bool> spilled;                  // For each tensor: whether it is spilled.
  std::vector<std::vector<int64_t>> offsets;  // For each tensor: one offset, or if spilled one for each touch.
  int64_t height = 0;                         // Bytes in use.
  int64_t traffic = 0;  // Bytes of extra loads and stores: the sum of spill_cost() over spilled tensors.
};

// Returns the bytes to and from main memory if a tensor is spilled: one store, unless the tensor is stored in any case,
// and a load for each read. The first read of a tensor from main memory does not count.
int64_t spill_cost(const Resident& tensor);

// Places the tensors. Throws Error if the tensors do not fit even when all but the fixed tensors are spilled.
Placement place(const WorkingSet& set);

// Throws an Error for the first broken rule: offsets are valid, no two tensors overlap at a step, no fixed tensor is
// spilled, height and traffic are correct. The check shares no code with `place`.
void check(const WorkingSet& set, const Placement& placement);

}  // namespace hexane::alloc
