#include "sched/co_issue.h"

#include <algorithm>
#include <cstdlib>

#include "core/error.h"

namespace hexane::sched {
namespace {

// The layer at each position, and the layers that wait for each layer, computed once.
struct Around {
  explicit Around(const Problem& problem, std::span<const Issue> issues)
      : at(issues.size(), -1), behind(issues.size()) {
    if (issues.size() != problem.layers.size())
      fail("co_issue", "issues: got ", issues.size(), ", need one for each of ", problem.layers.size(), " layers");
    for (size_t v = 0; v < issues.size(); v++) {
      const int32_t position = issues[v].position;
      if (position < 0) continue;
      if (position >= static_cast<int64_t>(issues.size()) || at[position] >= 0)
        fail("co_issue", "layer ", v, " position: got ", position, ", need one of its own below ", issues.size());
      at[position] = static_cast<int32_t>(v);
    }
    for (const Tensor& tensor : problem.tensors)
      if (tensor.producer != kOutside)
        for (const int32_t reader : tensor.readers) behind[tensor.producer].push_back(reader);
    for (const Edge& edge : problem.edges) behind[edge.before].push_back(edge.after);
    for (auto& layers : behind) std::sort(layers.begin(), layers.end());
  }

  bool depends(int32_t a, int32_t b) const {
    return std::binary_search(behind[a].begin(), behind[a].end(), b) ||
           std::binary_search(behind[b].begin(), behind[b].end(), a);
  }

  std::vector<int32_t> at;                   // Position -> layer.
  std::vector<std::vector<int32_t>> behind;  // Layer -> layers that wait for it.
};

Disqualifier judge(const Around& around, std::span<const Issue> issues, int32_t a, int32_t b) {
  const Issue &x = issues[a], &y = issues[b];
  if (x.position < 0 || y.position < 0) return Disqualifier::kUnscheduled;
  if (x.unit == y.unit || x.unit == Unit::kDma || y.unit == Unit::kDma) return Disqualifier::kSameClass;
  if (x.engine != y.engine) return Disqualifier::kOtherEngine;
  if (around.depends(a, b)) return Disqualifier::kDependent;
  if (x.chained_input || y.chained_input) return Disqualifier::kChainedInput;
  if (x.streams_output && y.streams_output && !x.resident_weight && !y.resident_weight)
    return Disqualifier::kBothStream;
  if (std::abs(x.position - y.position) != 1 || x.partition != y.partition) return Disqualifier::kNotNeighbours;
  return Disqualifier::kNone;
}

}  // namespace

Disqualifier why_not_together(const Problem& problem, std::span<const Issue> issues, int32_t a, int32_t b) {
  return judge(Around(problem, issues), issues, a, b);
}

Pairs find_pairs(const Problem& problem, std::span<const Issue> issues) {
  const Around around(problem, issues);
  Pairs pairs{std::vector<int32_t>(issues.size(), -1),
              std::vector<Disqualifier>(issues.size(), Disqualifier::kUnscheduled)};
  for (size_t i = 0; i + 1 < around.at.size(); i++) {
    const int32_t a = around.at[i], b = around.at[i + 1];
    if (a < 0 || b < 0) continue;
    pairs.verdict[a] = pairs.partner[a] >= 0 ? Disqualifier::kPaired : judge(around, issues, a, b);
    if (pairs.verdict[a] != Disqualifier::kNone) continue;
    pairs.partner[a] = b;
    pairs.partner[b] = a;
  }
  return pairs;
}

void check_pairs(const Problem& problem, std::span<const Issue> issues, std::span<const int32_t> partner) {
  if (partner.size() != issues.size() || issues.size() != problem.layers.size())
    fail("co_issue_check", "partners: got ", partner.size(), ", need one for each of ", problem.layers.size(),
         " layers");
  for (size_t a = 0; a < partner.size(); a++) {
    const int32_t b = partner[a];
    if (b == -1) continue;
    const auto need = [&](bool holds, const char* rule) {
      if (!holds) fail("co_issue_check", "layers ", a, " and ", b, ": need ", rule);
    };
    need(b >= 0 && b < static_cast<int64_t>(partner.size()) && partner[b] == static_cast<int64_t>(a),
         "partners of each other");
    const Issue one = issues[a], two = issues[b];
    need(one.position >= 0 && two.position >= 0, "both in the order");
    need((one.unit == Unit::kNe && two.unit == Unit::kPe) || (one.unit == Unit::kPe && two.unit == Unit::kNe),
         "one layer of the array and one of the planar engine");
    need(one.engine == two.engine, "one engine");
    need(one.partition == two.partition, "one partition");
    need(one.position - two.position == 1 || two.position - one.position == 1, "neighbours");
    need(!one.chained_input && !two.chained_input, "no chained input: chaining and co-issue exclude each other");
    need(!one.streams_output || !two.streams_output || one.resident_weight || two.resident_weight,
         "one output on chip, or a resident weight");
  }
  for (const Tensor& tensor : problem.tensors) {
    if (tensor.producer == kOutside) continue;
    for (const int32_t reader : tensor.readers)
      if (partner[tensor.producer] == reader)
        fail("co_issue_check", "layers ", tensor.producer, " and ", reader,
             ": need none that reads what the other makes");
  }
  for (const Edge& edge : problem.edges)
    if (partner[edge.before] == edge.after)
      fail("co_issue_check", "layers ", edge.before, " and ", edge.after, ": need none that waits for the other");
}

}  // namespace hexane::sched
