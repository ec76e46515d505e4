#include "sched/part.h"

#include <algorithm>
#include <limits>

namespace hexane::sched {
namespace {

// Positions in `sorted` at which a part begins: a layer that is comparable to all others. Every layer before a part's
// first layer has a successor; every layer after it has a predecessor.
std::vector<size_t> find_begins(const Graph& graph) {
  const size_t n = graph.sorted.size();
  std::vector<size_t> at(n);
  for (size_t i = 0; i < n; i++) at[graph.sorted[i]] = i;
  std::vector<int64_t> open_before(n + 1), open_behind(n + 1);
  for (size_t i = 0; i < n; i++) {
    // Layer i has no successor in sorted[0, next) and no predecessor in sorted[last, n).
    size_t next = n, last = 0;
    for (const int32_t v : graph.successors[graph.sorted[i]]) next = std::min(next, at[v]);
    for (const int32_t v : graph.predecessors[graph.sorted[i]]) last = std::max(last, at[v] + 1);
    open_before[i]++, open_before[next]--;
    open_behind[last]++, open_behind[i + 1]--;
  }
  std::vector<size_t> begins{0};
  int64_t sinks = 0, sources = 0;
  for (size_t i = 0; i < n; i++) {
    sinks += open_before[i];
    sources += open_behind[i];
    if (sinks != 1 || sources != 1) continue;
    if (i > begins.back()) begins.push_back(i);
    if (i + 1 < n) begins.push_back(i + 1);
  }
  return begins;
}

class Splitter {
 public:
  Splitter(const Problem& problem, const Graph& graph)
      : problem_(problem),
        graph_(graph),
        number_(problem.layers.size(), -1),
        part_of_(problem.layers.size()),
        last_part_(problem.tensors.size()) {}

  std::vector<Part> run() {
    const std::vector<size_t> begins = find_begins(graph_);
    for (size_t i = 0; i < begins.size(); i++) {
      const size_t end = i + 1 < begins.size() ? begins[i + 1] : graph_.sorted.size();
      for (size_t k = begins[i]; k < end; k++) part_of_[graph_.sorted[k]] = static_cast<int32_t>(i);
    }
    int64_t live = 0;
    for (size_t id = 0; id < problem_.tensors.size(); id++) {
      const Tensor& tensor = problem_.tensors[id];
      last_part_[id] = tensor.kept ? std::numeric_limits<int32_t>::max() : -1;
      for (const int32_t reader : tensor.readers) last_part_[id] = std::max(last_part_[id], part_of_[reader]);
      if (tensor.producer == kOutside && last_part_[id] >= 0) live += tensor.bytes;
    }
    std::vector<Part> parts;
    for (size_t i = 0; i < begins.size(); i++) {
      const size_t end = i + 1 < begins.size() ? begins[i + 1] : graph_.sorted.size();
      parts.push_back(make_part(static_cast<int32_t>(i), begins[i], end, live));
    }
    return parts;
  }

 private:
  // Makes a part. `live`: the live bytes before the part, set to the live bytes after the part.
  Part make_part(int32_t id, size_t begin, size_t end, int64_t& live) {
    Part part;
    part.start = live;
    part.layers.assign(graph_.sorted.begin() + begin, graph_.sorted.begin() + end);
    for (size_t i = 0; i < part.layers.size(); i++) number_[part.layers[i]] = static_cast<int32_t>(i);
    std::vector<int32_t> tensors;
    for (const int32_t layer : part.layers) {
      part.waits.emplace_back();
      for (const int32_t v : graph_.predecessors[layer])
        if (part_of_[v] == id) part.waits.back().push_back(number_[v]);
      part.needs.push_back(graph_.outputs[layer] + problem_.layers[layer].scratch);
      part.stays.push_back(graph_.stays[layer]);
      live += graph_.stays[layer];
      for (const int32_t t : graph_.reads[layer])
        if (last_part_[t] == id) tensors.push_back(t);
    }
    std::sort(tensors.begin(), tensors.end());
    tensors.erase(std::unique(tensors.begin(), tensors.end()), tensors.end());
    part.frees.resize(part.layers.size());
    for (const int32_t t : tensors) {
      const int32_t producer = problem_.tensors[t].producer;
      const bool inside = producer != kOutside && part_of_[producer] == id;
      Freed freed{problem_.tensors[t].bytes, inside ? number_[producer] : -1, {}};
      for (const int32_t reader : problem_.tensors[t].readers) {
        if (part_of_[reader] != id) continue;
        freed.readers.push_back(number_[reader]);
        part.frees[number_[reader]].push_back(static_cast<int32_t>(part.freed.size()));
      }
      live -= freed.bytes;
      part.freed.push_back(std::move(freed));
    }
    part.end = live;
    return part;
  }

  const Problem& problem_;
  const Graph& graph_;
  std::vector<int32_t> number_, part_of_;
  std::vector<int32_t> last_part_;  // for each tensor: the part that frees it; -1: no layer reads the tensor
};

}  // namespace

std::vector<Part> split(const Problem& problem, const Graph& graph) {
  if (problem.layers.empty()) return {};
  return Splitter(problem, graph).run();
}

int64_t part_bound(const Part& part) {
  const size_t n = part.layers.size(), num_words = (n + 63) / 64;
  // By layer: the layer itself and its direct and indirect predecessors, or successors.
  std::vector<uint64_t> before(n * num_words), behind(n * num_words);
  const auto bit = [&](std::vector<uint64_t>& sets, size_t set, size_t i) -> uint64_t& {
    return sets[set * num_words + i / 64];
  };
  const auto has = [&](std::vector<uint64_t>& sets, size_t set, size_t i) {
    return (bit(sets, set, i) >> (i % 64)) & 1;
  };
  for (size_t v = 0; v < n; v++) {
    bit(before, v, v) |= uint64_t{1} << (v % 64);
    for (const int32_t u : part.waits[v])
      for (size_t w = 0; w < num_words; w++) before[v * num_words + w] |= before[u * num_words + w];
  }
  for (size_t v = n; v-- > 0;) {
    bit(behind, v, v) |= uint64_t{1} << (v % 64);
    for (const int32_t u : part.waits[v])
      for (size_t w = 0; w < num_words; w++) behind[u * num_words + w] |= behind[v * num_words + w];
  }
  int64_t bound = std::max(part.start, part.end);
  for (size_t v = 0; v < n; v++) {
    // Adds the tensors of predecessors of v that stay live. Tensors whose readers may all have run do not count.
    int64_t live = part.start + part.needs[v];
    for (size_t u = 0; u < n; u++)
      if (u != v && has(before, v, u)) live += part.stays[u];
    for (const Freed& freed : part.freed) {
      if (freed.producer >= 0 && !has(before, v, freed.producer)) continue;
      const bool needed = std::any_of(freed.readers.begin(), freed.readers.end(),
                                      [&](int32_t reader) { return has(behind, v, reader); });
      if (!needed) live -= freed.bytes;
    }
    bound = std::max(bound, live);
  }
  return bound;
}

int64_t layer_bound(const Part& part) {
  int64_t through = part.start;  // live bytes that no layer of the part makes or frees
  std::vector<int64_t> reads(part.layers.size());
  for (const Freed& freed : part.freed) {
    if (freed.producer < 0) through -= freed.bytes;
    for (const int32_t reader : freed.readers) reads[reader] += freed.bytes;
  }
  int64_t bound = std::max(part.start, part.end);
  for (size_t v = 0; v < part.layers.size(); v++) bound = std::max(bound, through + reads[v] + part.needs[v]);
  return bound;
}

int64_t part_peak(const Part& part, std::span<const int32_t> order) {
  std::vector<size_t> waiting;
  for (const Freed& freed : part.freed) waiting.push_back(freed.readers.size());
  int64_t live = part.start, peak = live;
  for (const int32_t v : order) {
    peak = std::max(peak, live + part.needs[v]);
    live += part.stays[v];
    for (const int32_t t : part.frees[v])
      if (--waiting[t] == 0) live -= part.freed[t].bytes;
  }
  return peak;
}

}  // namespace hexane::sched
