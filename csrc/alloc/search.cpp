// Depth-first search over skylines with an explicit stack and a log of changes to undo. Read run() first.
#include "alloc/search.h"

#include <algorithm>
#include <limits>

#include "alloc/rank.h"

namespace hexane::alloc {

namespace {

constexpr int64_t kWall = std::numeric_limits<int64_t>::max();
constexpr int32_t kHorizon = 250;  // Most sections examined to choose one, so that long timelines take linear time.
constexpr int64_t kBlame = 1024;   // The initial weight of a section, and its increment for each failure.

struct Range {
  int32_t first, last;  // sections
};

struct Section {
  int64_t rest = 0;         // Bytes of the section's waiting members.
  int64_t begin = 0;        // Slot of the first member; waiting members come first, in any order.
  int64_t weight = kBlame;  // Grows with the section's failures.
  int32_t waiting = 0;      // Members not placed.
  int32_t joined = 0;       // Waiting members that are also live in the next section.
  int32_t choices = 0;      // Waiting members that could lie on the section's floor.
};

struct ItemState {
  int64_t lowest = 0;  // a waiting item's lowest offset not refused; a placed item's offset
};

// The record of one change, to undo it.
struct Undo {
  enum Kind : int32_t { kSection, kLowest, kPlace } kind;
  int32_t index;
  int64_t value;
  int32_t choices;
};

// A part of the timeline to pack after the current part. Once the current part is packed, its choices (those from
// number `num_choices` on) are final.
struct Goal {
  Range range;
  size_t num_choices;
  int32_t next;  // the goal to pack after this goal; -1: none
};

// A placement of an item, and the state before it. The search returns to this state to refuse the placement.
struct Choice {
  int32_t item;
  Range range;
  size_t trail_size;
  size_t num_goals;
  int32_t goal;
};

class Search {
 public:
  Search(const Timeline& timeline, int64_t capacity, const Options& options, int64_t& work_left)
      : items_(timeline.items),
        load_(timeline.load),
        capacity_(capacity),
        options_(options),
        work_left_(work_left),
        sections_(timeline.load.size()),
        floor_(timeline.load.size()),
        states_(items_.size()) {
    int64_t num_slots = 0;
    for (const Item& item : items_) {
      first_slot_.push_back(num_slots);
      num_slots += item.length();
      for (int32_t s = item.first; s <= item.last; s++) sections_[s].waiting++;
    }
    slots_.resize(num_slots);
    slot_of_.resize(num_slots);
    int64_t begin = 0;
    for (Section& section : sections_) {
      section.begin = begin;
      begin += section.waiting;
    }
  }

  // Runs one search from the empty arena, and stops it after `num_nodes` decisions.
  Verdict run(const std::vector<int32_t>& rank, int64_t num_nodes) {
    reset(rank);
    Range range{0, static_cast<int32_t>(sections_.size()) - 1};
    touched_ = range;
    for (;;) {
      if (num_nodes-- == 0 || work_left_ <= 0) return Verdict::kExhausted;
      if (!settle()) {
        if (!backtrack(range)) return Verdict::kImpossible;
      } else if (narrow(range)) {
        branch(range);
      } else if (goal_ >= 0) {
        const Goal& goal = goals_[goal_];
        range = goal.range;
        choices_.resize(goal.num_choices);
        goal_ = goal.next;
        touched_ = {0, -1};
      } else {
        return Verdict::kFits;
      }
    }
  }

  void copy_offsets(std::vector<int64_t>& offsets) const {
    offsets.clear();
    for (const ItemState& state : states_) offsets.push_back(state.lowest);
  }

 private:
  void reset(const std::vector<int32_t>& rank) {
    rank_ = &rank;
    trail_.clear();
    goals_.clear();
    choices_.clear();
    goal_ = -1;
    num_waiting_ = items_.size();
    std::fill(states_.begin(), states_.end(), ItemState{});
    for (size_t s = 0; s < sections_.size(); s++) {
      Section& section = sections_[s];
      floor_[s] = 0;
      section.rest = load_[s];
      section.waiting = section.joined = 0;
    }
    unsettled_.clear();
    for (size_t i = 0; i < items_.size(); i++) {
      const Item& item = items_[i];
      for (int32_t s = item.first; s <= item.last; s++) {
        Section& section = sections_[s];
        put(section.begin + section.waiting++, static_cast<int32_t>(i), s);
        section.joined += s < item.last;
        section.choices = section.waiting;
      }
    }
    work_left_ -= static_cast<int64_t>(slots_.size());
  }

  // Keeps slots_ (section's slot -> item) and slot_of_ (item's section -> slot) inverse to each other.
  void put(int64_t slot, int32_t item, int32_t section) {
    slots_[slot] = item;
    slot_of_[first_slot_[item] + section - items_[item].first] = slot;
  }

  void set_section(int32_t s, int64_t floor, int32_t choices) {
    Section& section = sections_[s];
    trail_.push_back({Undo::kSection, s, floor_[s], section.choices});
    floor_[s] = floor;
    section.choices = choices;
  }

  // Raises the lowest offset of a waiting item. `skipped`: sections whose `choices` the caller updates.
  void set_lowest(int32_t i, int64_t lowest, Range skipped) {
    const int64_t before = states_[i].lowest;
    trail_.push_back({Undo::kLowest, i, before, 0});
    states_[i].lowest = lowest;
    const Item& item = items_[i];
    leave_floor(before, {item.first, std::min(item.last, skipped.first - 1)});
    leave_floor(before, {std::max(item.first, skipped.last + 1), item.last});
  }

  // Decrements `choices` of the sections in the range whose floor is at `floor`.
  void leave_floor(int64_t floor, Range range) {
    for (int32_t s = range.first; s <= range.last; s++) {
      if (floor_[s] != floor) continue;
      set_section(s, floor, sections_[s].choices - 1);
      if (sections_[s].choices == 0) unsettled_.push_back(s);
    }
    work_left_ -= std::max(0, range.last - range.first + 1);
  }

  // Places an item on a floor that is flat below its whole span.
  void place(int32_t index) {
    const Item& item = items_[index];
    touched_ = {item.first, item.last};
    num_waiting_--;
    trail_.push_back({Undo::kPlace, index, 0, 0});
    const int64_t top = states_[index].lowest + item.size;
    for (int32_t s = item.first; s <= item.last; s++) {
      Section& section = sections_[s];
      section.rest -= item.size;
      section.joined -= s < item.last;
      section.waiting--;
      const int64_t last_slot = section.begin + section.waiting;
      const int64_t slot = slot_of_[first_slot_[index] + s - item.first];
      const int32_t other = slots_[last_slot];
      put(last_slot, index, s);
      put(slot, other, s);
      int32_t choices = 0;
      for (int64_t k = section.begin; k < last_slot; k++) {
        const int32_t i = slots_[k];
        if (states_[i].lowest < top) set_lowest(i, top, {item.first, item.last});
        choices += states_[i].lowest == top;
      }
      set_section(s, top, choices);
      if (choices == 0 && section.waiting > 0) unsettled_.push_back(s);
      work_left_ -= section.waiting;
    }
  }

  // Undoes a placement. Placements are undone in reverse order, so the item's slots are the first after the waiting
  // members.
  void take_back(int32_t index) {
    const Item& item = items_[index];
    num_waiting_++;
    for (int32_t s = item.first; s <= item.last; s++) {
      sections_[s].rest += item.size;
      sections_[s].joined += s < item.last;
      sections_[s].waiting++;
    }
  }

  void undo(size_t trail_size) {
    for (; trail_.size() > trail_size; trail_.pop_back()) {
      const Undo& change = trail_.back();
      if (change.kind == Undo::kSection) {
        floor_[change.index] = change.value;
        sections_[change.index].choices = change.choices;
      } else if (change.kind == Undo::kLowest) {
        states_[change.index].lowest = change.value;
      } else {
        take_back(change.index);
      }
    }
  }

  // Raises floors that no waiting item can lie on. Returns false if a section has no room for its waiting items.
  bool settle() {
    bool alive = true;
    for (const int32_t s : unsettled_) {
      Section& section = sections_[s];
      if (!alive || section.choices > 0) continue;
      int64_t floor = kWall;
      int32_t choices = 0;
      for (int64_t k = section.begin; k < section.begin + section.waiting; k++) {
        const int64_t lowest = states_[slots_[k]].lowest;
        if (lowest < floor) {
          floor = lowest;
          choices = 0;
        }
        choices += lowest == floor;
      }
      work_left_ -= section.waiting;
      set_section(s, floor, choices);
      if (floor > capacity_ - section.rest) {
        alive = false;
        blame(s);
      }
    }
    unsettled_.clear();
    return alive;
  }

  void blame(int32_t s) {
    if (options_.learn) sections_[s].weight += kBlame;
  }

  // Splits the range at touched sections that no waiting item crosses. `range` becomes one of these parts; the other
  // parts become goals. Returns false if no part has waiting items.
  bool narrow(Range& range) {
    if (!options_.split) return num_waiting_ > 0;
    const Range whole = range;
    range = {0, -1};
    int32_t first = whole.first;
    const auto add_part = [&](int32_t last) {
      if (first > last) return;
      if (range.first <= range.last) {
        goals_.push_back({range, choices_.size(), goal_});
        goal_ = static_cast<int32_t>(goals_.size()) - 1;
      }
      range = {first, last};
    };
    for (int32_t s = touched_.first; s <= touched_.last; s++) {
      const bool empty = sections_[s].waiting == 0;
      if (!empty && sections_[s].joined > 0) continue;
      add_part(empty ? s - 1 : s);
      first = s + 1;
    }
    add_part(whole.last);
    return range.first <= range.last;
  }

  int64_t height(int32_t s) const { return sections_[s].waiting > 0 ? floor_[s] : kWall; }

  // Returns the section in a valley with the fewest choices relative to its weight. If the first kHorizon sections
  // contain a valley, later valleys are not examined. A flat stretch at height 0 always counts as a valley.
  int32_t choose_section(const Range& range) const {
    const int32_t horizon = std::min(range.last, range.first + kHorizon);
    int32_t best = -1;
    int32_t first = range.first;
    while (first <= range.last && (first <= horizon || best < 0)) {
      const int64_t floor = height(first);
      const int32_t last = floor == 0 ? std::max(first, horizon) : range.last;
      int32_t end = first + 1;
      while (end <= last && height(end) == floor) end++;
      const bool valley = floor == 0 || (floor != kWall && (first == range.first || height(first - 1) > floor) &&
                                         (end > range.last || height(end) > floor));
      for (int32_t s = first; valley && s < end; s++) {
        if (best < 0 || sections_[s].choices * sections_[best].weight < sections_[best].choices * sections_[s].weight)
          best = s;
      }
      first = end;
    }
    work_left_ -= first - range.first;
    return best;
  }

  void branch(const Range& range) {
    const int32_t s = choose_section(range);
    const Section& section = sections_[s];
    int32_t best = -1;
    for (int64_t k = section.begin; k < section.begin + section.waiting; k++) {
      const int32_t i = slots_[k];
      if (states_[i].lowest == floor_[s] && (best < 0 || (*rank_)[i] < (*rank_)[best])) best = i;
    }
    choices_.push_back({best, range, trail_.size(), goals_.size(), goal_});
    place(best);
  }

  // Goes back to the last choice whose item can lie higher. Returns false if no choice is left.
  bool backtrack(Range& range) {
    while (!choices_.empty()) {
      const Choice choice = choices_.back();
      choices_.pop_back();
      undo(choice.trail_size);
      goals_.resize(choice.num_goals);
      goal_ = choice.goal;
      range = choice.range;
      touched_ = {0, -1};
      if (refuse(choice.item)) return true;
    }
    return false;
  }

  // Refuses an item's lowest offset: raises it to the next offset at which the item could lie.
  bool refuse(int32_t index) {
    const Item& item = items_[index];
    int64_t lowest = kWall;
    for (int32_t s = item.first; s <= item.last; s++) {
      const Section& section = sections_[s];
      for (int64_t k = section.begin; k < section.begin + section.waiting; k++) {
        if (may_support(slots_[k], index))
          lowest = std::min(lowest, states_[slots_[k]].lowest + items_[slots_[k]].size);
      }
      work_left_ -= section.waiting;
    }
    if (lowest > capacity_ - item.size) {
      for (int32_t s = item.first; s <= item.last; s++) blame(s);
      return false;
    }
    set_lowest(index, options_.support ? lowest : states_[index].lowest + 1, {item.last + 1, item.last});
    return true;
  }

  bool may_support(int32_t below, int32_t above) const {
    if (below == above) return false;
    const bool one_span = items_[below].first == items_[above].first && items_[below].last == items_[above].last;
    return !(options_.stack && one_span && (*rank_)[above] < (*rank_)[below]);
  }

  const std::vector<Item>& items_;
  const std::vector<int64_t>& load_;
  const int64_t capacity_;
  const Options& options_;
  int64_t& work_left_;
  const std::vector<int32_t>* rank_ = nullptr;

  std::vector<Section> sections_;
  std::vector<int64_t>
      floor_;  // section -> height below which no waiting item can lie; a separate array, scanned most often
  std::vector<ItemState> states_;
  std::vector<int64_t> first_slot_;  // item -> where the item's sections start in slot_of_
  std::vector<int64_t> slot_of_;
  std::vector<int32_t> slots_;
  std::vector<int32_t> unsettled_;  // sections whose `choices` became 0
  std::vector<Undo> trail_;
  std::vector<Goal> goals_;
  std::vector<Choice> choices_;
  Range touched_{0, -1};  // sections at which the last placed item may split the range
  size_t num_waiting_ = 0;
  int32_t goal_ = -1;  // the goal after the current range
};

// Estimates the work of the shortest descent: each placed item is compared with the items live in each of its sections.
int64_t least_work(const Timeline& timeline) {
  std::vector<int64_t> change(timeline.load.size() + 1);
  for (const Item& item : timeline.items) {
    change[item.first]++;
    change[item.last + 1]--;
  }
  int64_t live = 0, work = 0;
  for (const int64_t c : change) {
    live += c;
    work += live * live;
  }
  return work;
}

}  // namespace

Verdict search(const Timeline& timeline, int64_t capacity, const Options& options, int64_t& work_left,
               std::vector<int64_t>& offsets) {
  offsets.clear();
  if (timeline.items.empty()) return Verdict::kFits;
  if (least_work(timeline) > work_left) return Verdict::kExhausted;
  Search search(timeline, capacity, options, work_left);
  int64_t num_nodes = timeline.num_items() * 3 / 2 + 64;
  for (uint64_t descent = 0; work_left > 0; descent++) {
    const Order order = kOrders[descent % std::size(kOrders)];
    const std::vector<int32_t> rank = rank_items(timeline, order, descent);
    const Verdict verdict = search.run(rank, options.restart ? num_nodes : -1);
    if (verdict == Verdict::kFits) search.copy_offsets(offsets);
    if (verdict != Verdict::kExhausted) return verdict;
    num_nodes += num_nodes / 64;
  }
  return Verdict::kExhausted;
}

}  // namespace hexane::alloc
