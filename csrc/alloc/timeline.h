// The problem as the solvers see it. Only moments matter at which a buffer ends after another one began. Between two
// such moments the live set first grows and then shrinks, so its largest state is enough. These states are the
// *sections*.
//
//      step      0  1  2  3  4  5
//      a         ##########            sections   {a b}  {a c}  {c d}
//      b            #                  spans      a 0..1   b 0..0   c 1..2   d 2..2
//      c                  #########
//      d                        ###
#pragma once

#include <cstdint>
#include <vector>

#include "alloc/problem.h"

namespace hexane::alloc {

// A buffer that takes space. It is live in the sections first..last, both included, except in its gaps.
struct Item {
  int32_t first = 0;
  int32_t last = 0;
  int64_t size = 0;  // bytes, rounded
  int32_t length() const { return last - first + 1; }
};

// A run of sections in which an item is live. Items without gaps have one.
struct Segment {
  int32_t item = 0;
  int32_t first = 0;
  int32_t last = 0;
};

struct Timeline {
  std::vector<Item> items;
  std::vector<size_t> buffer;     // item -> index in Problem::buffers
  std::vector<Segment> segments;  // by first section
  std::vector<int64_t> load;      // section -> bytes live in it
  // Divides every size, place and alignment, so every height of a packing that cannot sink is a multiple of it.
  int64_t unit = 1;
  int32_t num_sections() const { return static_cast<int32_t>(load.size()); }
  int32_t num_items() const { return static_cast<int32_t>(items.size()); }
};

// The problem must be valid.
Timeline make_timeline(const Problem& problem);

}  // namespace hexane::alloc
