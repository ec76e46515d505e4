// The bytes in use at each step are the leaves of a tree that adds to a range of leaves, and finds the largest leaf of
// a range, in O(log n).
#include "sched/partition.h"

#include <algorithm>

#include "sched/graph.h"

namespace hexane::sched {
namespace {

class Steps {
 public:
  explicit Steps(size_t num_steps) {
    while (num_leaves_ < num_steps) num_leaves_ *= 2;
    nodes_.resize(2 * num_leaves_);
  }

  // add() and most() work on the steps first..last, both included.
  void add(int32_t first, int32_t last, int64_t bytes) { add(1, 0, num_leaves_, first, size_t(last) + 1, bytes); }
  int64_t most(int32_t first, int32_t last) const { return most(1, 0, num_leaves_, first, size_t(last) + 1); }

 private:
  struct Node {
    int64_t own = 0;   // Added to all leaves below this node.
    int64_t most = 0;  // The largest leaf below this node, `own` included.
  };

  void add(size_t node, size_t low, size_t high, size_t begin, size_t end, int64_t bytes) {
    if (high <= begin || end <= low) return;
    if (begin <= low && high <= end) {
      nodes_[node].own += bytes;
      nodes_[node].most += bytes;
      return;
    }
    const size_t middle = (low + high) / 2;
    add(2 * node, low, middle, begin, end, bytes);
    add(2 * node + 1, middle, high, begin, end, bytes);
    nodes_[node].most = nodes_[node].own + std::max(nodes_[2 * node].most, nodes_[2 * node + 1].most);
  }

  int64_t most(size_t node, size_t low, size_t high, size_t begin, size_t end) const {
    if (high <= begin || end <= low) return 0;
    if (begin <= low && high <= end) return nodes_[node].most;
    const size_t middle = (low + high) / 2;
    return nodes_[node].own +
           std::max(most(2 * node, low, middle, begin, end), most(2 * node + 1, middle, high, begin, end));
  }

  size_t num_leaves_ = 1;
  std::vector<Node> nodes_;
};

class Partitioner {
 public:
  Partitioner(const Problem& problem, std::span<const int32_t> order, int64_t limit)
      : problem_(problem),
        order_(order),
        limit_(limit),
        touches_(make_touches(problem)),
        steps_(order.size()),
        stay_(problem.tensors.size()),
        home_(problem.tensors.size(), -1),
        stored_(problem.tensors.size()) {}

  std::vector<Partition> run() {
    for (int32_t step = 0; step < static_cast<int32_t>(order_.size()); step++) {
      if (partitions_.empty() || !fits(step)) {
        close(step);
        partitions_.push_back({step, step, 0, 0, 0});
      }
      place(step);
    }
    close(static_cast<int32_t>(order_.size()));
    return std::move(partitions_);
  }

 private:
  struct Stay {
    int32_t partition = -1;
    int32_t first = 0;  // first step that touches the tensor in the partition
    int32_t last = 0;
  };

  static Lists make_touches(const Problem& problem) {
    std::vector<std::pair<int32_t, int32_t>> rows;
    for (size_t id = 0; id < problem.tensors.size(); id++) {
      const Tensor& tensor = problem.tensors[id];
      if (tensor.producer != kOutside) rows.emplace_back(tensor.producer, static_cast<int32_t>(id));
      for (const int32_t reader : tensor.readers) rows.emplace_back(reader, static_cast<int32_t>(id));
    }
    return {problem.layers.size(), rows};
  }

  int32_t current() const { return static_cast<int32_t>(partitions_.size()) - 1; }

  // Adds (sign 1) or removes (-1) the bytes of the layer at `step` at the steps of the current partition. Returns the
  // first step whose bytes change.
  int32_t change(int32_t step, int64_t sign) {
    int32_t from = step;
    steps_.add(step, step, sign * problem_.layers[order_[step]].scratch);
    for (const int32_t id : touches_[order_[step]]) {
      const bool here = stay_[id].partition == current();
      const int32_t begin = here ? stay_[id].last + 1 : step;
      steps_.add(begin, step, sign * problem_.tensors[id].bytes);
      from = std::min(from, here ? stay_[id].first : step);
    }
    return from;
  }

  bool fits(int32_t step) {
    if (steps_.most(partitions_.back().first, step - 1) > limit_) return false;  // a single layer exceeds the limit
    const int32_t from = change(step, 1);
    const bool fits = steps_.most(from, step) <= limit_;
    change(step, -1);
    return fits;
  }

  void place(int32_t step) {
    change(step, 1);
    Partition& partition = partitions_.back();
    for (const int32_t id : touches_[order_[step]]) {
      const Tensor& tensor = problem_.tensors[id];
      if (stay_[id].partition != current()) {
        stay_[id] = {current(), step, step};
        if (tensor.producer == order_[step]) {
          home_[id] = current();
        } else {
          partition.loaded += tensor.bytes;
          if (home_[id] >= 0) store(id);
        }
      }
      stay_[id].last = step;
      if (tensor.kept && tensor.producer == order_[step]) store(id);
    }
  }

  void store(int32_t id) {
    if (stored_[id]) return;
    stored_[id] = true;
    partitions_[home_[id]].stored += problem_.tensors[id].bytes;
  }

  void close(int32_t step) {
    if (partitions_.empty()) return;
    partitions_.back().end = step;
    partitions_.back().peak = steps_.most(partitions_.back().first, step - 1);
  }

  const Problem& problem_;
  std::span<const int32_t> order_;
  int64_t limit_;
  Lists touches_;  // for each layer: tensors that it reads or makes
  Steps steps_;
  std::vector<Stay> stay_;     // For each tensor: its stay on chip.
  std::vector<int32_t> home_;  // For each tensor: the partition that produces it; -1: no partition so far.
  std::vector<bool> stored_;   // For each tensor: whether it counts as stored to main memory.
  std::vector<Partition> partitions_;
};

}  // namespace

std::vector<Partition> partition(const Problem& problem, std::span<const int32_t> order, int64_t limit) {
  return Partitioner(problem, order, limit).run();
}

}  // namespace hexane::sched
