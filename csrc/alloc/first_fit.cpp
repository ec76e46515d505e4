#include "alloc/first_fit.h"

#include <algorithm>
#include <limits>

#include "alloc/rank.h"
#include "core/error.h"

namespace hexane::alloc {

FirstFit::FirstFit(const Problem& problem, const Timeline& timeline)
    : timeline_(timeline),
      meets_(timeline.items.size()),
      members_(timeline.load.size()),
      sections_(timeline.items.size()) {
  for (const size_t id : timeline.buffer) {
    const Buffer& buffer = problem.buffers[id];
    alignment_.push_back(std::max(problem.alignment, buffer.alignment));
    fixed_.push_back(buffer.at.has_value());
    lowest_.push_back(buffer.at.value_or(0));
  }
  std::vector<Segment> live;
  for (const Segment& segment : timeline.segments) {
    std::erase_if(live, [&](const Segment& other) { return other.last < segment.first; });
    for (const Segment& other : live) {
      meets_[segment.item].push_back(other.item);
      meets_[other.item].push_back(segment.item);
    }
    live.push_back(segment);
    for (int32_t s = segment.first; s <= segment.last; s++) {
      members_[s].push_back(segment.item);
      sections_[segment.item].push_back(s);
    }
  }
  for (auto& items : meets_) {  // two items with gaps may be live together more than once: keep one entry
    std::sort(items.begin(), items.end());
    items.erase(std::unique(items.begin(), items.end()), items.end());
  }
  for (size_t i = 0; i < meets_.size(); i++)
    for (const int32_t other : meets_[i])
      if (fixed_[i] && fixed_[other] && overlaps(static_cast<int32_t>(i), lowest_[i], other))
        fail("alloc", "buffer ", timeline.buffer[i], " place: got ", lowest_[i], ", which overlaps buffer ",
             timeline.buffer[other], " at ", lowest_[other], ", need places that do not overlap");
}

void FirstFit::reset() {
  trail_.clear();
  choices_.clear();
  placed_ = fixed_;
  num_waiting_ = static_cast<int32_t>(std::count(fixed_.begin(), fixed_.end(), false));
  for (int32_t i = 0; i < timeline_.num_items(); i++)
    if (!fixed_[i]) lowest_[i] = first_free(i, 0);
}

bool FirstFit::overlaps(int32_t item, int64_t place, int32_t other) const {
  return place < lowest_[other] + timeline_.items[other].size && lowest_[other] < place + timeline_.items[item].size;
}

int64_t FirstFit::first_free(int32_t item, int64_t place) const {
  place = round_up(place, alignment_[item]);
  taken_.clear();
  for (const int32_t other : meets_[item])
    if (placed_[other]) taken_.push_back(other);
  std::sort(taken_.begin(), taken_.end(), [&](int32_t a, int32_t b) { return lowest_[a] < lowest_[b]; });
  for (const int32_t other : taken_)
    if (overlaps(item, place, other)) place = round_up(lowest_[other] + timeline_.items[other].size, alignment_[item]);
  work_ += static_cast<int64_t>(meets_[item].size()) + 1;
  return place;
}

Packing FirstFit::pack(const std::vector<int32_t>& rank) {
  reset();
  std::vector<int32_t> order(rank.size());
  for (size_t i = 0; i < rank.size(); i++) order[rank[i]] = static_cast<int32_t>(i);
  Packing packing;
  for (const int32_t i : order) {
    if (!fixed_[i]) lowest_[i] = first_free(i, 0);
    placed_[i] = true;
    packing.height = std::max(packing.height, lowest_[i] + timeline_.items[i].size);
  }
  packing.offsets = lowest_;
  return packing;
}

bool FirstFit::set_lowest(int32_t item, int64_t lowest, int64_t capacity) {
  trail_.push_back({item, lowest_[item]});
  lowest_[item] = lowest;
  return lowest <= capacity - timeline_.items[item].size;
}

// True if each section of the item still has room for the section's waiting items. No waiting item can lie below the
// lowest place of its section's waiting items.
bool FirstFit::has_room(int32_t item, int64_t capacity) const {
  for (const int32_t s : sections_[item]) {
    int64_t floor = capacity, rest = 0;
    for (const int32_t other : members_[s]) {
      if (placed_[other]) continue;
      floor = std::min(floor, lowest_[other]);
      rest += timeline_.items[other].size;
    }
    work_ += static_cast<int64_t>(members_[s].size());
    if (rest > capacity - floor) return false;
  }
  return true;
}

bool FirstFit::place(int32_t item, int64_t capacity) {
  choices_.push_back({item, trail_.size()});
  placed_[item] = true;
  num_waiting_--;
  for (const int32_t other : meets_[item])
    if (!placed_[other] && overlaps(other, lowest_[other], item) &&
        !set_lowest(other, first_free(other, lowest_[other]), capacity))
      return false;
  return has_room(item, capacity);
}

bool FirstFit::refuse(int32_t item, int64_t capacity) {
  int64_t top = std::numeric_limits<int64_t>::max();
  for (const int32_t other : meets_[item]) {
    const int64_t end = lowest_[other] + timeline_.items[other].size;
    if (end > lowest_[item]) top = std::min(top, end);
  }
  work_ += static_cast<int64_t>(meets_[item].size());
  if (top > capacity - timeline_.items[item].size) return false;
  return set_lowest(item, first_free(item, top), capacity) && has_room(item, capacity);
}

// Goes back to the last choice whose item can lie higher. Returns false if no choice is left.
bool FirstFit::backtrack(int64_t capacity) {
  while (!choices_.empty()) {
    const Choice choice = choices_.back();
    choices_.pop_back();
    for (; trail_.size() > choice.trail_size; trail_.pop_back()) lowest_[trail_.back().item] = trail_.back().lowest;
    placed_[choice.item] = false;
    num_waiting_++;
    if (refuse(choice.item, capacity)) return true;
  }
  return false;
}

int32_t FirstFit::choose(const std::vector<int32_t>& rank) const {
  int32_t best = -1;
  for (int32_t i = 0; i < timeline_.num_items(); i++) {
    if (placed_[i]) continue;
    if (best < 0 || lowest_[i] < lowest_[best] || (lowest_[i] == lowest_[best] && rank[i] < rank[best])) best = i;
  }
  work_ += timeline_.num_items();
  return best;
}

Verdict FirstFit::descend(const std::vector<int32_t>& rank, int64_t capacity, int64_t num_nodes, int64_t work_left) {
  work_ = 0;
  reset();
  for (int32_t i = 0; i < timeline_.num_items(); i++)
    if (lowest_[i] > capacity - timeline_.items[i].size) return Verdict::kImpossible;
  while (num_waiting_ > 0) {
    if (num_nodes-- == 0 || work_ > work_left) return Verdict::kExhausted;
    if (!place(choose(rank), capacity) && !backtrack(capacity)) return Verdict::kImpossible;
  }
  return Verdict::kFits;
}

Verdict FirstFit::search(int64_t capacity, const Options& options, int64_t& work_left, std::vector<int64_t>& offsets) {
  int64_t num_nodes = int64_t{timeline_.num_items()} * 3 / 2 + 64;
  for (uint64_t descent = 0; work_left > 0; descent++) {
    const std::vector<int32_t> rank = rank_items(timeline_, kOrders[descent % std::size(kOrders)], descent);
    const Verdict verdict = descend(rank, capacity, options.restart ? num_nodes : -1, work_left);
    work_left -= work_ + 1;
    if (verdict == Verdict::kFits) offsets = lowest_;
    if (verdict != Verdict::kExhausted) return verdict;
    num_nodes += num_nodes / 64;
  }
  return Verdict::kExhausted;
}

}  // namespace hexane::alloc
