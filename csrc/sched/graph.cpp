#include "sched/graph.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "core/error.h"

namespace hexane::sched {

Lists::Lists(size_t num_owners, std::span<const std::pair<int32_t, int32_t>> rows)
    : begin_(num_owners + 1), items_(rows.size()) {
  for (const auto& [owner, item] : rows) begin_[owner + 1]++;
  std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
  std::vector<size_t> next(begin_.begin(), begin_.end() - 1);
  for (const auto& [owner, item] : rows) items_[next[owner]++] = item;
}

namespace {

using Rows = std::vector<std::pair<int32_t, int32_t>>;

// Levels by Kahn's algorithm: a layer is visited after its last predecessor.
void sort_by_level(Graph& graph, size_t num_layers) {
  graph.level.assign(num_layers, 0);
  std::vector<int32_t> waits(num_layers);
  std::vector<int32_t> ready;
  for (size_t v = 0; v < num_layers; v++) {
    waits[v] = static_cast<int32_t>(graph.predecessors[v].size());
    if (waits[v] == 0) ready.push_back(static_cast<int32_t>(v));
  }
  for (size_t i = 0; i < ready.size(); i++) {
    for (const int32_t next : graph.successors[ready[i]]) {
      graph.level[next] = std::max(graph.level[next], graph.level[ready[i]] + 1);
      if (--waits[next] == 0) ready.push_back(next);
    }
  }
  if (ready.size() < num_layers) {
    const auto stuck = std::find_if(waits.begin(), waits.end(), [](int32_t n) { return n > 0; });
    fail("sched", "layer ", stuck - waits.begin(), ": got a circle of layers that wait for one another");
  }
  std::sort(ready.begin(), ready.end(),
            [&](int32_t a, int32_t b) { return std::tie(graph.level[a], a) < std::tie(graph.level[b], b); });
  graph.sorted = std::move(ready);
}

}  // namespace

Graph make_graph(const Problem& problem) {
  const size_t num_layers = problem.layers.size();
  Graph graph;
  Rows before, after, reads, makes;
  graph.outputs.assign(num_layers, 0);
  graph.stays.assign(num_layers, 0);
  for (const Edge& edge : problem.edges) before.emplace_back(edge.after, edge.before);
  for (size_t id = 0; id < problem.tensors.size(); id++) {
    const Tensor& tensor = problem.tensors[id];
    for (const int32_t reader : tensor.readers) {
      reads.emplace_back(reader, static_cast<int32_t>(id));
      if (tensor.producer != kOutside) before.emplace_back(reader, tensor.producer);
    }
    if (tensor.producer == kOutside) continue;
    makes.emplace_back(tensor.producer, static_cast<int32_t>(id));
    graph.outputs[tensor.producer] += tensor.bytes;
    if (tensor.kept || !tensor.readers.empty()) graph.stays[tensor.producer] += tensor.bytes;
  }
  std::sort(before.begin(), before.end());
  before.erase(std::unique(before.begin(), before.end()), before.end());
  for (const auto& [layer, earlier] : before) after.emplace_back(earlier, layer);
  graph.predecessors = Lists(num_layers, before);
  graph.successors = Lists(num_layers, after);
  graph.reads = Lists(num_layers, reads);
  graph.makes = Lists(num_layers, makes);
  sort_by_level(graph, num_layers);
  return graph;
}

int64_t peak_bytes(const Problem& problem, const Graph& graph, std::span<const int32_t> order) {
  std::vector<int32_t> waiting(problem.tensors.size());  // readers that have not run
  int64_t live = 0;
  for (size_t id = 0; id < problem.tensors.size(); id++) {
    const Tensor& tensor = problem.tensors[id];
    waiting[id] = static_cast<int32_t>(tensor.readers.size());
    if (tensor.producer == kOutside && (waiting[id] || tensor.kept)) live += tensor.bytes;
  }
  int64_t peak = live;
  for (const int32_t layer : order) {
    peak = std::max(peak, live + graph.outputs[layer] + problem.layers[layer].scratch);
    live += graph.stays[layer];
    for (const int32_t id : graph.reads[layer])
      if (--waiting[id] == 0 && !problem.tensors[id].kept) live -= problem.tensors[id].bytes;
  }
  return peak;
}

}  // namespace hexane::sched
