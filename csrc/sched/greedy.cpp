// Scores only rise while a layer waits, except for a footprint that no longer fits. So a layer enters the queue again
// when its score changes. Older entries of the layer are dropped when they reach the top.
#include "sched/greedy.h"

#include <queue>
#include <tuple>

#include "sched/branches.h"

namespace hexane::sched {
namespace {

constexpr int32_t kNone = -1;

// Returns the key for comparisons. The layer with the larger tuple is better.
auto key(const Score& s) {
  return std::make_tuple(s.ring, s.branch, s.merge, s.begun, s.footprint, -s.level, -s.layer);
}

struct Worse {
  bool operator()(const Score& a, const Score& b) const { return key(a) < key(b); }
};

Rule deciding_rule(const Score& best, const Score& next) {
  if (best.ring != next.ring) return Rule::kRing;
  if (best.branch != next.branch) return Rule::kBranch;
  if (best.merge != next.merge) return Rule::kMerge;
  if (std::tie(best.begun, best.footprint) != std::tie(next.begun, next.footprint)) return Rule::kWorkingSet;
  return best.level != next.level ? Rule::kTopological : Rule::kNumber;
}

// The number of waiting layers, and the exclusive or of their numbers. With one layer left, the exclusive or is its
// number.
struct Waiting {
  int32_t count = 0;
  int32_t mix = 0;
  void add(int32_t id) { count++, mix ^= id; }
  void remove(int32_t id) { count--, mix ^= id; }
};

class ListScheduler {
 public:
  ListScheduler(const Problem& problem, const Graph& graph, int64_t ceiling)
      : problem_(problem),
        graph_(graph),
        ceiling_(ceiling),
        branches_(find_branches(problem, graph)),
        readers_(problem.tensors.size()),
        blockers_(problem.layers.size()),
        scores_(problem.layers.size()),
        ready_(problem.layers.size()),
        done_(problem.layers.size()),
        begun_(branches_.branches.size()) {
    for (size_t v = 0; v < problem.layers.size(); v++) {
      const auto layer = static_cast<int32_t>(v);
      scores_[v] = {problem.layers[v].ring, 0, 0, 0, 0, graph.level[v], layer};
      for (const int32_t before : graph.predecessors[v]) blockers_[v].add(before);
    }
    for (size_t id = 0; id < problem.tensors.size(); id++) {
      const Tensor& tensor = problem.tensors[id];
      for (const int32_t reader : tensor.readers) readers_[id].add(reader);
      if (readers_[id].count == 1) scores_[readers_[id].mix].branch++;
      if (tensor.producer == kOutside && (tensor.kept || !tensor.readers.empty())) live_ += tensor.bytes;
    }
  }

  std::vector<Choice> run() {
    for (size_t v = 0; v < problem_.layers.size(); v++)
      if (blockers_[v].count == 0) make_ready(static_cast<int32_t>(v));
    std::vector<Choice> choices;
    choices.reserve(problem_.layers.size());
    while (settle_top()) {
      Choice choice{queue_.top(), Rule::kOnly};
      queue_.pop();
      done_[choice.score.layer] = true;
      if (settle_top()) choice.rule = deciding_rule(choice.score, queue_.top());
      choices.push_back(choice);
      finish(choice.score.layer);
    }
    return choices;
  }

 private:
  void make_ready(int32_t layer) {
    ready_[layer] = true;
    Score& score = scores_[layer];
    const int32_t begins = branches_.begun[layer];
    const int32_t inside = begins == kNone ? branches_.inner[layer] : branches_.branches[begins].outer;
    if (inside != kNone) score.begun = begun_[inside];
    if (begins != kNone && fits(begins)) score.footprint = branches_.branches[begins].footprint;
    queue_.push(score);
  }

  bool fits(int32_t branch) const {
    const Branch& b = branches_.branches[branch];
    return b.ends <= ceiling_ && b.footprint <= ceiling_ - live_;
  }

  // Drops outdated entries from the top of the queue; returns false if the queue is then empty.
  bool settle_top() {
    for (; !queue_.empty(); queue_.pop()) {
      const int32_t layer = queue_.top().layer;
      if (done_[layer] || !(queue_.top() == scores_[layer])) continue;
      if (scores_[layer].footprint == 0 || fits(branches_.begun[layer])) return true;
      scores_[layer].footprint = 0;
      queue_.push(scores_[layer]);
    }
    return false;
  }

  void raise(int32_t layer, int32_t Score::*score) {
    scores_[layer].*score += 1;
    if (ready_[layer] && !done_[layer]) queue_.push(scores_[layer]);
  }

  void finish(int32_t layer) {
    if (branches_.begun[layer] != kNone) begun_[branches_.begun[layer]] = ++num_begun_;
    live_ += graph_.stays[layer];
    for (const int32_t id : graph_.reads[layer]) {
      readers_[id].remove(layer);
      if (readers_[id].count == 0 && !problem_.tensors[id].kept) live_ -= problem_.tensors[id].bytes;
      if (readers_[id].count == 1) raise(readers_[id].mix, &Score::branch);
    }
    for (const int32_t after : graph_.successors[layer]) {
      blockers_[after].remove(layer);
      if (blockers_[after].count == 1) raise(blockers_[after].mix, &Score::merge);
      if (blockers_[after].count == 0) make_ready(after);
    }
  }

  const Problem& problem_;
  const Graph& graph_;
  int64_t ceiling_;
  Branches branches_;
  std::vector<Waiting> readers_;   // For each tensor: layers that have not read it.
  std::vector<Waiting> blockers_;  // For each layer: predecessors that have not run.
  std::vector<Score> scores_;
  std::vector<bool> ready_, done_;
  std::vector<int32_t> begun_;  // for each branch: count of begun branches when the branch's head ran
  int32_t num_begun_ = 0;
  int64_t live_ = 0;
  std::priority_queue<Score, std::vector<Score>, Worse> queue_;
};

}  // namespace

std::vector<Choice> schedule_greedily(const Problem& problem, const Graph& graph, int64_t ceiling) {
  return ListScheduler(problem, graph, ceiling).run();
}

}  // namespace hexane::sched
