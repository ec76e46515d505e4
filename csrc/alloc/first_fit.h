// The packer for problems whose buffers have gaps, fixed places or alignments larger than the problem's. A skyline
// cannot describe the free space around such buffers, so the packer compares each item with the items live at the same
// time.
//
// Greedy: places items in the order of their rank, each at its lowest free place. Exact: depth-first search. For the
// waiting item with the lowest free place there are two choices: it lies at this place, or it lies higher, on top of an
// item that is live at the same time:
//
//      |  +---+             |  +---+  +---+            lowest(x) = the lowest free place that is not refused;
//      |  | b |  +---+      |  | b |  | x |            refusing x lifts it to the lowest top
//      |  +---+  | x |      |  +---+  +...+            of an item (placed or waiting) live with x.
//      +---------+---+--    +-----------------
//
// The search covers every packing in which no single item can be moved down. One of these packings has the minimum
// height.
#pragma once

#include <cstdint>
#include <vector>

#include "alloc/options.h"
#include "alloc/search.h"
#include "alloc/skyline.h"
#include "alloc/timeline.h"

namespace hexane::alloc {

class FirstFit {
 public:
  // Throws Error if two buffers live at the same time have fixed places that overlap.
  FirstFit(const Problem& problem, const Timeline& timeline);

  Packing pack(const std::vector<int32_t>& rank);
  Verdict search(int64_t capacity, const Options& options, int64_t& work_left, std::vector<int64_t>& offsets);

 private:
  struct Undo {
    int32_t item;
    int64_t lowest;
  };
  struct Choice {
    int32_t item;
    size_t trail_size;
  };

  void reset();
  bool overlaps(int32_t item, int64_t place, int32_t other) const;
  int64_t first_free(int32_t item, int64_t place) const;  // returns the lowest free offset at or above `place`
  bool place(int32_t item,
             int64_t capacity);  // places an item at its lowest offset; false if another item then has no room
  bool backtrack(int64_t capacity);
  bool refuse(int32_t item, int64_t capacity);
  bool set_lowest(int32_t item, int64_t lowest, int64_t capacity);
  bool has_room(int32_t item, int64_t capacity) const;  // true if the item's sections have room
  int32_t choose(const std::vector<int32_t>& rank) const;
  Verdict descend(const std::vector<int32_t>& rank, int64_t capacity, int64_t num_nodes, int64_t work_left);

  const Timeline& timeline_;
  std::vector<int64_t> alignment_;
  std::vector<bool> fixed_;
  std::vector<std::vector<int32_t>> meets_;     // For each item: the items that are live at the same time.
  std::vector<std::vector<int32_t>> members_;   // For each section: the items that are live in it.
  std::vector<std::vector<int32_t>> sections_;  // For each item: the sections in which it is live.
  std::vector<int64_t> lowest_;                 // A waiting item's lowest offset; a placed item's offset.
  std::vector<bool> placed_;
  std::vector<Undo> trail_;
  std::vector<Choice> choices_;
  int32_t num_waiting_ = 0;
  mutable int64_t work_ = 0;  // work of the current descent
  mutable std::vector<int32_t> taken_;
};

}  // namespace hexane::alloc
