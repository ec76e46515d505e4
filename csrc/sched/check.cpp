// Checks orders by positions, and partitions by the first and last touch of every tensor. The check uses neither the
// graph nor the tree of the solvers.
#include "sched/check.h"

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

#include "core/error.h"

namespace hexane::sched {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

std::vector<int64_t> positions(const Problem& problem, std::span<const int32_t> order) {
  if (order.size() != problem.layers.size())
    fail("sched_check", "order: got ", order.size(), " layers, need ", problem.layers.size());
  std::vector<int64_t> position(order.size(), -1);
  for (size_t i = 0; i < order.size(); i++) {
    const int32_t layer = order[i];
    if (layer < 0 || layer >= static_cast<int64_t>(order.size()) || position[layer] >= 0)
      fail("sched_check", "order: got layer ", layer, " at ", i, ", need each of 0..", order.size() - 1, " once");
    position[layer] = static_cast<int64_t>(i);
  }
  return position;
}

void need_before(const std::vector<int64_t>& position, int32_t before, int32_t after) {
  if (position[before] < position[after]) return;
  fail("sched_check", "layer ", after, ": got place ", position[after], ", need one after ", position[before],
       ", the place of layer ", before);
}

// A range of steps.
struct Range {
  int64_t first = kNever;
  int64_t last = -1;
  void touch(int64_t step) {
    first = std::min(first, step);
    last = std::max(last, step);
  }
};

// Returns the most bytes in use at a step in [begin, end), where tensors are in use from their first to their last
// touch in this range.
int64_t peak_of(const Problem& problem, std::span<const int32_t> order, const std::vector<std::vector<size_t>>& touched,
                int64_t begin, int64_t end) {
  std::map<size_t, Range> ranges;
  std::vector<int64_t> change(end - begin + 1);
  for (int64_t step = begin; step < end; step++) {
    change[step - begin] += problem.layers[order[step]].scratch;
    change[step - begin + 1] -= problem.layers[order[step]].scratch;
    for (const size_t id : touched[order[step]]) ranges[id].touch(step);
  }
  for (const auto& [id, range] : ranges) {
    change[range.first - begin] += problem.tensors[id].bytes;
    change[range.last - begin + 1] -= problem.tensors[id].bytes;
  }
  int64_t now = 0, most = 0;
  for (const int64_t bytes : change) most = std::max(most, now += bytes);
  return most;
}

void need_equal(size_t partition, const char* what, int64_t got, int64_t need) {
  if (got != need) fail("sched_check", "partition ", partition, " ", what, ": got ", got, " bytes, need ", need);
}

}  // namespace

void check_order(const Problem& problem, std::span<const int32_t> order, std::optional<int64_t> peak) {
  const std::vector<int64_t> position = positions(problem, order);
  for (const Edge& edge : problem.edges) need_before(position, edge.before, edge.after);
  std::vector<int64_t> change(order.size() + 2);  // change of the live bytes before step i
  for (const Tensor& tensor : problem.tensors) {
    int64_t last = tensor.producer == kOutside ? -1 : position[tensor.producer];
    const int64_t first = std::max<int64_t>(last, 0);
    for (const int32_t reader : tensor.readers) {
      if (tensor.producer != kOutside) need_before(position, tensor.producer, reader);
      last = std::max(last, position[reader]);
    }
    if (tensor.kept) last = static_cast<int64_t>(order.size());
    if (last < 0) continue;
    change[first] += tensor.bytes;
    change[last + 1] -= tensor.bytes;
  }
  int64_t live = 0, most = 0;
  for (size_t i = 0; i <= order.size(); i++) {
    live += change[i];
    most = std::max(most, live + (i < order.size() ? problem.layers[order[i]].scratch : 0));
  }
  if (peak && most != *peak) fail("sched_check", "peak: got ", *peak, " bytes, need ", most);
}

void check_partitions(const Problem& problem, std::span<const int32_t> order, std::span<const Partition> partitions,
                      int64_t limit) {
  const std::vector<int64_t> position = positions(problem, order);
  std::vector<std::vector<size_t>> touched(problem.layers.size());
  for (size_t id = 0; id < problem.tensors.size(); id++) {
    if (problem.tensors[id].producer != kOutside) touched[problem.tensors[id].producer].push_back(id);
    for (const int32_t reader : problem.tensors[id].readers) touched[reader].push_back(id);
  }
  int64_t next = 0;
  std::vector<int64_t> of(order.size());  // for each position: index of its partition
  for (size_t i = 0; i < partitions.size(); i++) {
    const auto [first, end, peak, loaded, stored] = partitions[i];
    if (first != next || end <= first || end > static_cast<int64_t>(order.size()))
      fail("sched_check", "partition ", i, ": got layers ", first, "..", end, ", need some from ", next, " on");
    std::fill(of.begin() + first, of.begin() + end, static_cast<int64_t>(i));
    next = end;
    need_equal(i, "peak", peak, peak_of(problem, order, touched, first, end));
    if (peak > limit && end - first > 1)
      fail("sched_check", "partition ", i, " peak: got ", peak, " bytes, need at most ", limit);
    if (end == static_cast<int64_t>(order.size())) continue;
    if (const int64_t more = peak_of(problem, order, touched, first, end + 1); more <= limit)
      fail("sched_check", "partition ", i, ": closed before layer ", order[end], " with which it needs ", more,
           " bytes, need more than ", limit, " for that");
  }
  if (next != static_cast<int64_t>(order.size()))
    fail("sched_check", "partitions: got ", next, " layers, need ", order.size());

  std::vector<int64_t> loaded(partitions.size()), stored(partitions.size());
  for (const Tensor& tensor : problem.tensors) {
    const int64_t home = tensor.producer == kOutside ? -1 : of[position[tensor.producer]];
    std::vector<int64_t> away;
    for (const int32_t reader : tensor.readers)
      if (of[position[reader]] != home) away.push_back(of[position[reader]]);
    std::sort(away.begin(), away.end());
    away.erase(std::unique(away.begin(), away.end()), away.end());
    for (const int64_t partition : away) loaded[partition] += tensor.bytes;
    if (home >= 0 && (tensor.kept || !away.empty())) stored[home] += tensor.bytes;
  }
  for (size_t i = 0; i < partitions.size(); i++) {
    need_equal(i, "loaded", partitions[i].loaded, loaded[i]);
    need_equal(i, "stored", partitions[i].stored, stored[i]);
  }
}

}  // namespace hexane::sched
