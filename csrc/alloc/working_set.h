// Offsets of the tensors of one partition in on-chip memory. Where they do not fit, some are spilled: they lie in main
// memory, and only one tile of each takes memory here, in the steps that touch it.
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
  int64_t tile_bytes = 0;        // bytes for one touch of a spilled tensor
  bool made = false;             // the first touch makes it, the others read it; else all read it
  bool stored = false;           // it goes to main memory anyway
  bool fixed = false;            // it cannot be spilled
  std::vector<int64_t> touches;  // steps, rising
};

struct WorkingSet {
  std::vector<Resident> tensors;
  int64_t capacity = 0;   // bytes
  int64_t alignment = 1;  // bytes, a power of two
};

struct Placement {
  std::vector<bool> spilled;                  // by tensor
  std::vector<std::vector<int64_t>> offsets;  // by tensor: one, or one for each touch where it is spilled
  int64_t height = 0;                         // bytes in use
  int64_t traffic = 0;                        // bytes of extra loads and stores, `spill_cost` of all that is spilled
};

// Bytes to and from main memory for a spilled tensor: one store, unless it is stored anyway, and a load for each read.
// The first read of a tensor that comes from main memory does not count.
int64_t spill_cost(const Resident& tensor);

// Throws if the tensors do not fit even when all that may be is spilled.
Placement place(const WorkingSet& set);

// Throws the first rule that a placement breaks: sound offsets, no two that overlap at one step, nothing spilled that
// is fixed, height and traffic as they are. Shares no code with `place`.
void check(const WorkingSet& set, const Placement& placement);

}  // namespace hexane::alloc
