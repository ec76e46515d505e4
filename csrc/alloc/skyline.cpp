// The skyline is a linked list of flat stretches with a heap to find the lowest; the items wait in a tree ordered by
// first section.
#include "alloc/skyline.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>
#include <tuple>

namespace hexane::alloc {
namespace {

constexpr int32_t kNone = std::numeric_limits<int32_t>::max();

// The waiting items, sorted by first section, as leaves of a tree. A node has the best rank and the smallest last
// section of its leaves.
class Waiting {
 public:
  Waiting(const Timeline& timeline, const std::vector<int32_t>& rank) : items_(timeline.items), order_(items_.size()) {
    std::iota(order_.begin(), order_.end(), 0);
    std::sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
      return std::tie(items_[a].first, rank[a]) < std::tie(items_[b].first, rank[b]);
    });
    begin_.assign(timeline.num_sections() + 1, 0);
    for (const Item& item : items_) begin_[item.first + 1]++;
    std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
    while (num_leaves_ < items_.size()) num_leaves_ *= 2;
    nodes_.resize(2 * num_leaves_);
    for (size_t leaf = 0; leaf < items_.size(); leaf++) {
      nodes_[num_leaves_ + leaf] = {rank[order_[leaf]], items_[order_[leaf]].last};
    }
    for (size_t node = num_leaves_ - 1; node > 0; node--) join(node);
  }

  // Removes and returns the item of best rank with first <= item.first and item.last <= last; -1 if there is none.
  int32_t take(int32_t first, int32_t last) {
    best_ = {kNone, 0};
    find(1, 0, num_leaves_, begin_[first], begin_[last + 1], last);
    if (best_.rank == kNone) return -1;
    size_t node = num_leaves_ + best_.leaf;
    nodes_[node] = {};
    while (node /= 2) join(node);
    return order_[best_.leaf];
  }

 private:
  struct Node {
    int32_t rank = kNone;
    int32_t last = kNone;
  };
  struct Found {
    int32_t rank;
    size_t leaf;
  };

  void join(size_t node) {
    const Node& a = nodes_[2 * node];
    const Node& b = nodes_[2 * node + 1];
    nodes_[node] = {std::min(a.rank, b.rank), std::min(a.last, b.last)};
  }

  // Searches the leaves [begin, end) by branch and bound; visits the child with the better rank first.
  void find(size_t node, size_t low, size_t high, size_t begin, size_t end, int32_t last) {
    if (high <= begin || end <= low || nodes_[node].last > last || nodes_[node].rank >= best_.rank) return;
    if (high - low == 1) {
      best_ = {nodes_[node].rank, low};
      return;
    }
    const size_t middle = (low + high) / 2;
    const bool left_first = nodes_[2 * node].rank < nodes_[2 * node + 1].rank;
    if (left_first) find(2 * node, low, middle, begin, end, last);
    find(2 * node + 1, middle, high, begin, end, last);
    if (!left_first) find(2 * node, low, middle, begin, end, last);
  }

  const std::vector<Item>& items_;
  std::vector<int32_t> order_;  // Leaf -> item.
  std::vector<size_t> begin_;   // Section -> first leaf of an item that starts in the section.
  size_t num_leaves_ = 1;
  std::vector<Node> nodes_;
  Found best_ = {};
};

// The flat stretches of the skyline, each stored at its first section.
class Skyline {
 public:
  explicit Skyline(int32_t num_sections)
      : num_sections_(num_sections), stretches_(num_sections), before_(num_sections) {
    set(0, num_sections - 1, 0);
  }

  struct Stretch {
    int32_t first, last;
    int64_t height;
  };

  Stretch lowest() {
    for (;; heap_.pop()) {
      const auto [height, first] = heap_.top();
      const Flat& flat = stretches_[first];
      if (flat.last >= 0 && flat.height == height) return {first, flat.last, height};
    }
  }

  // Raises the sections first..last, a part of `stretch`, to `height`.
  void lift(const Stretch& stretch, int32_t first, int32_t last, int64_t height) {
    if (first > stretch.first) set(stretch.first, first - 1, stretch.height);
    if (last < stretch.last) set(last + 1, stretch.last, stretch.height);
    if (last < num_sections_ - 1 && stretches_[last + 1].height == height) {
      const int32_t joined = last + 1;
      last = stretches_[joined].last;
      stretches_[joined].last = -1;
    }
    if (first > 0) {
      const int32_t left = before_[first - 1];
      if (stretches_[left].height == height) {
        stretches_[first].last = -1;
        first = left;
      }
    }
    set(first, last, height);
  }

  // Returns the height of the lower wall of a stretch; the largest int64 if the stretch is the whole skyline.
  int64_t wall(const Stretch& stretch) const {
    int64_t height = std::numeric_limits<int64_t>::max();
    if (stretch.first > 0) height = stretches_[before_[stretch.first - 1]].height;
    if (stretch.last < num_sections_ - 1) height = std::min(height, stretches_[stretch.last + 1].height);
    return height;
  }

 private:
  struct Flat {
    int32_t last = -1;  // the stretch's last section; -1: no stretch starts here
    int64_t height = 0;
  };

  void set(int32_t first, int32_t last, int64_t height) {
    stretches_[first] = {last, height};
    before_[last] = first;
    heap_.emplace(height, first);
  }

  int32_t num_sections_;
  std::vector<Flat> stretches_;  // Each stretch at its first section.
  std::vector<int32_t> before_;  // Last section of a stretch -> its first section.
  std::priority_queue<std::pair<int64_t, int32_t>, std::vector<std::pair<int64_t, int32_t>>, std::greater<>> heap_;
};

}  // namespace

Packing pack_skyline(const Timeline& timeline, const std::vector<int32_t>& rank) {
  Packing packing;
  packing.offsets.resize(timeline.items.size());
  if (timeline.items.empty()) return packing;
  Waiting waiting(timeline, rank);
  Skyline skyline(timeline.num_sections());
  for (int32_t num_left = timeline.num_items(); num_left > 0;) {
    const Skyline::Stretch valley = skyline.lowest();
    const int32_t index = waiting.take(valley.first, valley.last);
    if (index < 0) {
      skyline.lift(valley, valley.first, valley.last, skyline.wall(valley));
      continue;
    }
    const Item& item = timeline.items[index];
    const int64_t top = valley.height + item.size;
    packing.offsets[index] = valley.height;
    packing.height = std::max(packing.height, top);
    skyline.lift(valley, item.first, item.last, top);
    num_left--;
  }
  return packing;
}

}  // namespace hexane::alloc
