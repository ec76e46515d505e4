// The problem in the form that the solvers use. Over time, births enlarge the live set and deaths reduce it. Only the
// live sets directly between a birth and a death matter, because they contain all others: the *sections*.
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

// A buffer of size > 0. The buffer is live in the sections first..last, both included, except in its gaps.
struct Item {
  int32_t first = 0;
  int32_t last = 0;
  int64_t size = 0;  // bytes, rounded up
  int32_t length() const { return last - first + 1; }
};

// A run of sections in which an item is live. An item without gaps has one segment.
struct Segment {
  int32_t item = 0;
  int32_t first = 0;
  int32_t last = 0;
};

struct Timeline {
  std::vector<Item> items;
  std::vector<size_t> buffer;     // Item -> index in Problem::buffers.
  std::vector<Segment> segments;  // Segments, sorted by first section.
  std::vector<int64_t> load;      // Bytes live in each section of time.
  // A common divisor of all sizes, places and alignments. If no item can move down, the height of a packing is a
  // multiple of this divisor.
  int64_t unit = 1;
  int32_t num_sections() const { return static_cast<int32_t>(load.size()); }
  int32_t num_items() const { return static_cast<int32_t>(items.size()); }
};

// Makes the timeline of a valid problem.
Timeline make_timeline(const Problem& problem);

}  // namespace hexane::alloc
