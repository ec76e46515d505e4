// Sets are rows of words in one vector. A hash table with open addressing finds them.
#include "sched/downsets.h"

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

namespace hexane::sched {
namespace {

void insert(uint64_t* set, int32_t item) { set[item / 64] |= uint64_t{1} << (item % 64); }
void remove(uint64_t* set, int32_t item) { set[item / 64] &= ~(uint64_t{1} << (item % 64)); }
bool contains(const uint64_t* set, int32_t item) { return (set[item / 64] >> (item % 64)) & 1; }

}  // namespace

Downsets::Downsets(const Part& part, Direction direction, int64_t peak)
    : part_(part),
      direction_(direction),
      num_words_((part.layers.size() + 63) / 64),
      waits_(part.layers.size() * num_words_),
      readers_(part.freed.size() * num_words_),
      table_(1024, -1),
      scratch_(num_words_) {
  const bool forward = direction == Direction::kForward;
  neighbours_.resize(part.layers.size());
  for (int32_t v = 0; v < part.num_layers(); v++)
    for (const int32_t u : part.waits[v]) {
      const auto [waiting, other] = forward ? std::pair(v, u) : std::pair(u, v);
      insert(&waits_[waiting * num_words_], other);
      neighbours_[other].push_back(waiting);
    }
  for (size_t t = 0; t < part.freed.size(); t++)
    for (const int32_t v : part.freed[t].readers) insert(&readers_[t * num_words_], v);
  for (const Freed& freed : part.freed)
    for (const int32_t v : freed.readers)
      for (const int32_t u : freed.readers)
        if (u != v) neighbours_[v].push_back(u);
  int64_t live = forward ? part.start : part.end;
  run_free(peak, live);
  State root{live, peak, -1, -1, 0, false};
  for (const uint64_t word : scratch_) root.num_layers += std::popcount(word);
  table_[slot_of(scratch_.data())] = 0;
  states_.push_back(root);
  sets_ = scratch_;
}

uint64_t Downsets::valid(size_t word) const {
  const size_t rest = part_.layers.size() - 64 * word;
  return rest >= 64 ? ~uint64_t{0} : (uint64_t{1} << rest) - 1;
}

bool Downsets::is_ready(const uint64_t* set, int32_t layer) const {
  const uint64_t* waits = &waits_[layer * num_words_];
  for (size_t w = 0; w < num_words_; w++)
    if (waits[w] & ~set[w]) return false;
  return true;
}

// Returns the change of the live bytes by the layer. Forward, the layer frees the tensors whose other readers are all
// in the set. Backward, the layer makes those tensors live that have no reader in the set.
int64_t Downsets::change_of(const uint64_t* set, int32_t layer) const {
  const bool forward = direction_ == Direction::kForward;
  int64_t bytes = 0;
  for (const int32_t t : part_.frees[layer]) {
    const uint64_t* readers = &readers_[t * num_words_];
    bool counts = true;
    for (size_t w = 0; w < num_words_ && counts; w++) {
      const uint64_t self = w == static_cast<size_t>(layer) / 64 ? uint64_t{1} << (layer % 64) : 0;
      counts = (readers[w] & (forward ? ~set[w] : set[w]) & ~self) == 0;
    }
    if (counts) bytes += part_.freed[t].bytes;
  }
  return forward ? part_.stays[layer] - bytes : bytes - part_.stays[layer];
}

// Returns the bytes while the layer runs: the live bytes before it (in running order), its results, and its scratch.
int64_t Downsets::peak_of(int64_t live, int64_t change, int32_t layer) const {
  return part_.needs[layer] + (direction_ == Direction::kForward ? live : live + change);
}

// Adds to the set in `scratch_` the ready layers that fit and free at least the bytes of their results. Then adds a
// pair of layers that together free at least the bytes of their results, if both fit, and begins again.
void Downsets::run_free(int64_t peak, int64_t& live) {
  do {
    run_free_layers(peak, live);
  } while (run_free_pair(peak, live));
}

void Downsets::run_free_layers(int64_t peak, int64_t& live) {
  uint64_t* set = scratch_.data();
  for (bool changed = true; changed;) {
    changed = false;
    work_ += part_.num_layers() * static_cast<int64_t>(num_words_);
    for (size_t w = 0; w < num_words_; w++) {
      for (uint64_t absent = ~set[w] & valid(w); absent; absent &= absent - 1) {
        const auto layer = static_cast<int32_t>(64 * w + std::countr_zero(absent));
        if (!is_ready(set, layer)) continue;
        const int64_t change = change_of(set, layer);
        if (change > 0 || peak_of(live, change, layer) > peak) continue;
        insert(set, layer);
        ran_.push_back(layer);
        live += change;
        changed = true;
      }
    }
  }
}

bool Downsets::run_free_pair(int64_t peak, int64_t& live) {
  uint64_t* set = scratch_.data();
  work_ += part_.num_layers() * static_cast<int64_t>(num_words_);
  for (size_t w = 0; w < num_words_; w++) {
    for (uint64_t absent = ~set[w] & valid(w); absent; absent &= absent - 1) {
      const auto first = static_cast<int32_t>(64 * w + std::countr_zero(absent));
      if (!is_ready(set, first)) continue;
      const int64_t change = change_of(set, first), between = live + change;
      if (peak_of(live, change, first) > peak) continue;
      insert(set, first);
      for (const int32_t second : neighbours_[first]) {
        if (contains(set, second) || !is_ready(set, second)) continue;
        const int64_t more = change_of(set, second);
        if (between + more > live || peak_of(between, more, second) > peak) continue;
        insert(set, second);
        ran_.push_back(first);
        ran_.push_back(second);
        live = between + more;
        return true;
      }
      remove(set, first);
    }
  }
  return false;
}

// Returns the state after `layer` if it is new or now has a lower peak.
int32_t Downsets::step(int32_t parent, int32_t layer, int64_t peak) {
  const uint64_t* from = &sets_[static_cast<size_t>(parent) * num_words_];
  int64_t live = states_[parent].live + change_of(from, layer);
  std::copy_n(from, num_words_, scratch_.begin());
  insert(scratch_.data(), layer);
  ran_.clear();
  run_free(peak, live);

  const size_t slot = slot_of(scratch_.data());
  if (const int32_t known = table_[slot]; known >= 0) {
    State& state = states_[known];
    if (state.done || state.peak <= peak) return -1;
    state.peak = peak, state.parent = parent, state.layer = layer;
    return known;
  }
  State state{live, peak, parent, layer, 0, false};
  for (const uint64_t word : scratch_) state.num_layers += std::popcount(word);
  table_[slot] = size();
  states_.push_back(state);
  sets_.insert(sets_.end(), scratch_.begin(), scratch_.end());
  if (2 * states_.size() > table_.size()) grow();
  return size() - 1;
}

// Returns the slot of the set in the table, or the free slot where it belongs.
size_t Downsets::slot_of(const uint64_t* set) const {
  uint64_t hash = 0;
  for (size_t w = 0; w < num_words_; w++) {
    hash = (hash ^ set[w]) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  for (size_t slot = hash & (table_.size() - 1);; slot = (slot + 1) & (table_.size() - 1)) {
    const int32_t state = table_[slot];
    if (state < 0 || std::equal(set, set + num_words_, &sets_[static_cast<size_t>(state) * num_words_])) return slot;
  }
}

void Downsets::grow() {
  table_.assign(2 * table_.size(), -1);
  for (int32_t state = 0; state < size(); state++)
    table_[slot_of(&sets_[static_cast<size_t>(state) * num_words_])] = state;
}

// Appends the layers between the state's parent and the state, by repeating the steps that led to the state.
void Downsets::replay(int32_t state, std::vector<int32_t>& order) {
  const auto [parent, first, peak] = std::tuple(states_[state].parent, states_[state].layer, states_[state].peak);
  std::fill(scratch_.begin(), scratch_.end(), 0);
  int64_t live = direction_ == Direction::kForward ? part_.start : part_.end;
  if (parent >= 0) {
    const uint64_t* from = &sets_[static_cast<size_t>(parent) * num_words_];
    live = states_[parent].live + change_of(from, first);
    std::copy_n(from, num_words_, scratch_.begin());
    insert(scratch_.data(), first);
    order.push_back(first);
  }
  ran_.clear();
  run_free(peak, live);
  order.insert(order.end(), ran_.begin(), ran_.end());
}

void Downsets::restart(int32_t state, std::vector<int32_t>& order) {
  std::vector<int32_t> way;
  for (int32_t s = state; s >= 0; s = states_[s].parent) way.push_back(s);
  if (restarted_) way.pop_back();  // `order` already has the layers up to the root
  restarted_ = true;
  for (auto it = way.rbegin(); it != way.rend(); ++it) replay(*it, order);
  State root = states_[state];
  root.parent = root.layer = -1;
  root.done = false;
  scratch_.assign(&sets_[static_cast<size_t>(state) * num_words_],
                  &sets_[static_cast<size_t>(state) * num_words_] + num_words_);
  states_.assign(1, root);
  sets_ = scratch_;
  table_.assign(1024, -1);
  table_[slot_of(scratch_.data())] = 0;
}

}  // namespace hexane::sched
