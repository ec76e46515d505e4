// The sets of layers of a part that a search has visited, with the live bytes after them and the path to them. A
// forward search adds layers whose predecessors are in the set (downsets). A backward search adds layers whose
// successors are in the set.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "sched/part.h"

namespace hexane::sched {

enum class Direction : uint8_t { kForward, kBackward };

class Downsets {
 public:
  struct State {
    int64_t live = 0;     // Live bytes after the state's layers.
    int64_t peak = 0;     // The peak of the best path to the state.
    int32_t parent = -1;  // The previous state; -1 for the root.
    int32_t layer = -1;   // The first layer after the parent; the free layers follow it.
    int32_t num_layers = 0;
    bool done = false;  // whether the search has expanded this state
  };

  // The root is the empty set plus the layers that are free at `peak`.
  Downsets(const Part& part, Direction direction, int64_t peak);

  int32_t size() const { return static_cast<int32_t>(states_.size()); }
  State& operator[](int32_t state) { return states_[state]; }
  bool is_full(int32_t state) const { return states_[state].num_layers == part_.num_layers(); }

  // Makes a child of `state` for each ready layer: the layer runs, then all free layers. Calls met(child) for every
  // child with a peak below `limit` that is new, or that had a higher peak and is not done.
  template <typename Met>
  void expand(int32_t state, int64_t limit, Met met) {
    work_ += part_.num_layers() * static_cast<int64_t>(num_words_);
    const size_t begin = static_cast<size_t>(state) * num_words_;
    for (size_t w = 0; w < num_words_; w++) {
      for (uint64_t absent = ~sets_[begin + w] & valid(w); absent; absent &= absent - 1) {
        const auto layer = static_cast<int32_t>(64 * w + std::countr_zero(absent));
        if (!is_ready(&sets_[begin], layer)) continue;
        const int64_t live = states_[state].live;
        const int64_t peak = std::max(states_[state].peak, peak_of(live, change_of(&sets_[begin], layer), layer));
        if (peak >= limit) continue;
        const int32_t child = step(state, layer, peak);
        if (child >= 0) met(child);
      }
    }
  }

  // Forgets all states but this one, which becomes the root. The layers that lead to this state are added to `order`.
  void restart(int32_t state, std::vector<int32_t>& order);

  int64_t work() const { return work_; }  // words of sets read

 private:
  uint64_t valid(size_t word) const;
  bool is_ready(const uint64_t* set, int32_t layer) const;
  int64_t change_of(const uint64_t* set, int32_t layer) const;
  int64_t peak_of(int64_t live, int64_t change, int32_t layer) const;
  void run_free(int64_t peak, int64_t& live);
  void run_free_layers(int64_t peak, int64_t& live);
  bool run_free_pair(int64_t peak, int64_t& live);
  int32_t step(int32_t state, int32_t layer, int64_t peak);
  size_t slot_of(const uint64_t* set) const;
  void grow();
  void replay(int32_t state, std::vector<int32_t>& order);

  const Part& part_;
  Direction direction_;
  size_t num_words_;
  std::vector<uint64_t> waits_;    // For each layer: the set of its predecessors.
  std::vector<uint64_t> readers_;  // For each freed tensor: the set of layers that read it.
  std::vector<State> states_;
  std::vector<uint64_t> sets_;  // For each state: the set of layers that ran.
  std::vector<int32_t> table_;  // Hash -> state; -1: the slot is empty.
  std::vector<std::vector<int32_t>>
      neighbours_;                 // For each layer: layers that it makes ready, or that read one of its freed tensors.
  std::vector<uint64_t> scratch_;  // The set under construction.
  std::vector<int32_t> ran_;       // Free layers added since the set was begun.
  bool restarted_ = false;
  int64_t work_ = 0;
};

}  // namespace hexane::sched
