// Every layer begins a run, which ends before a layer that also has predecessors outside the run. Runs are found from
// the last layer to the first. The run of a layer is the layer, the diamond that it forks if all its paths meet, and
// the run after that.
#include "sched/branches.h"

#include <algorithm>

namespace hexane::sched {
namespace {

constexpr int32_t kNone = -1;

struct Run {
  int32_t merge = kNone;  // The layer before which the run ends (it has predecessors outside the run), or kNone.
  int64_t peak = 0;       // Most live bytes of the run's own tensors.
  int64_t rest = 0;       // Live bytes of the run's own tensors at its end.
};

class Finder {
 public:
  Finder(const Problem& problem, const Graph& graph)
      : graph_(graph), problem_(problem), runs_(problem.layers.size()), merge_(problem.layers.size(), kNone) {
    for (auto it = graph.sorted.rbegin(); it != graph.sorted.rend(); ++it) runs_[*it] = run_from(*it);
  }

  Branches branches() const {
    Branches result;
    result.inner.assign(problem_.layers.size(), kNone);
    result.begun.assign(problem_.layers.size(), kNone);
    for (const int32_t fork : graph_.sorted) {
      if (merge_[fork] == kNone) continue;
      for (const int32_t head : graph_.successors[fork]) {
        if (head == merge_[fork]) continue;
        const auto id = static_cast<int32_t>(result.branches.size());
        result.branches.push_back(
            {head, result.inner[fork], graph_.outputs[fork] + graph_.outputs[merge_[fork]], runs_[head].peak});
        result.begun[head] = id;
        for (int32_t layer = head; layer != merge_[fork]; layer = next(layer)) result.inner[layer] = id;
      }
    }
    return result;
  }

 private:
  bool has_one_predecessor(int32_t layer) const { return graph_.predecessors[layer].size() == 1; }

  // Returns the layer after `layer`, or after the diamond that `layer` forks.
  int32_t next(int32_t layer) const {
    return merge_[layer] == kNone ? graph_.successors[layer].front() : merge_[layer];
  }

  // Returns the layer at which all paths from a layer, and no other paths, meet; kNone if there is none.
  int32_t meeting(int32_t fork) const {
    const auto heads = graph_.successors[fork];
    int32_t merge = kNone;
    for (const int32_t head : heads)
      if (has_one_predecessor(head)) merge = runs_[head].merge;
    if (merge == kNone || graph_.predecessors[merge].size() != heads.size()) return kNone;
    const bool meet = std::all_of(heads.begin(), heads.end(), [&](int32_t head) {
      return head == merge || (has_one_predecessor(head) && runs_[head].merge == merge);
    });
    return meet ? merge : kNone;
  }

  Run run_from(int32_t layer) {
    const int64_t needs = graph_.outputs[layer] + problem_.layers[layer].scratch;
    Run run{kNone, needs, graph_.stays[layer]};
    const auto after = graph_.successors[layer];
    if (after.size() == 1) {
      if (!has_one_predecessor(after[0])) {
        run.merge = after[0];
        return run;
      }
      return followed_by(run, run.rest, after[0]);
    }
    if (after.empty() || (merge_[layer] = meeting(layer)) == kNone) return run;

    std::vector<Run> inside;
    for (const int32_t head : after)
      if (head != merge_[layer]) inside.push_back(runs_[head]);
    std::sort(inside.begin(), inside.end(), [](const Run& a, const Run& b) { return a.peak > b.peak; });
    int64_t held = run.rest;
    for (const Run& branch : inside) {
      run.peak = std::max(run.peak, held + branch.peak);
      held += branch.rest;
    }
    return followed_by(run, held, merge_[layer]);
  }

  // Returns `run` extended by the run of `layer`. `held`: live bytes of `run` when `layer` begins.
  Run followed_by(Run run, int64_t held, int32_t layer) const {
    const Run& tail = runs_[layer];
    run.peak = std::max({run.peak, held + graph_.outputs[layer] + problem_.layers[layer].scratch, tail.peak});
    run.rest = tail.rest;
    run.merge = tail.merge;
    return run;
  }

  const Graph& graph_;
  const Problem& problem_;
  std::vector<Run> runs_;
  std::vector<int32_t> merge_;  // for each layer that forks a diamond: the layer that merges the diamond
};

}  // namespace

Branches find_branches(const Problem& problem, const Graph& graph) { return Finder(problem, graph).branches(); }

}  // namespace hexane::sched
