// Orders of random graphs: both schedulers pass the independent check, and the optimal one needs what the best of all
// orders needs.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <limits>

#include "check.h"
#include "sched/branches.h"
#include "sched/check.h"
#include "sched/greedy.h"
#include "sched/optimal.h"

namespace sched = hexane::sched;

namespace {

// A small linear congruential generator: the same problems everywhere.
struct Random {
  uint64_t state;
  int64_t below(int64_t n) {
    state = state * 6364136223846793005 + 1442695040888963407;
    return static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(n));
  }
};

sched::Problem scattered(uint64_t seed, int32_t num_layers) {
  Random random{seed};
  sched::Problem problem;
  problem.layers.resize(num_layers);
  for (sched::Layer& layer : problem.layers) layer.scratch = random.below(3) ? 0 : random.below(6);
  for (int32_t t = 0; t < num_layers + 3; t++) {
    sched::Tensor tensor{random.below(9), t < num_layers ? t : sched::kOutside, random.below(6) == 0, {}};
    for (int32_t v = tensor.producer + 1; v < num_layers && tensor.readers.size() < 3; v++)
      if (random.below(3) == 0) tensor.readers.push_back(v);
    problem.tensors.push_back(tensor);
  }
  if (num_layers > 1) problem.edges.push_back({0, num_layers - 1});
  return problem;
}

std::vector<int32_t> layers_of(const std::vector<sched::Choice>& choices) {
  std::vector<int32_t> order;
  for (const sched::Choice& choice : choices) order.push_back(choice.score.layer);
  return order;
}

int64_t lowest_by_brute_force(const sched::Problem& problem, const sched::Graph& graph) {
  std::vector<int32_t> order(problem.layers.size());
  for (size_t i = 0; i < order.size(); i++) order[i] = static_cast<int32_t>(i);
  int64_t lowest = std::numeric_limits<int64_t>::max();
  do {
    std::vector<size_t> at(order.size());
    for (size_t i = 0; i < order.size(); i++) at[order[i]] = i;
    bool sound = true;
    for (size_t v = 0; v < order.size(); v++)
      for (const int32_t u : graph.predecessors[v]) sound = sound && at[u] < at[v];
    if (sound) lowest = std::min(lowest, sched::peak_bytes(problem, graph, order));
  } while (std::next_permutation(order.begin(), order.end()));
  return lowest;
}

void test_the_optimum_is_that_of_all_orders() {
  for (uint64_t seed = 0; seed < 300; seed++) {
    const sched::Problem problem = scattered(seed, static_cast<int32_t>(1 + seed % 7));
    sched::validate(problem);
    const sched::Graph graph = sched::make_graph(problem);
    const std::vector<int32_t> greedy = layers_of(sched::schedule_greedily(problem, graph, 20));
    sched::check_order(problem, greedy, sched::peak_bytes(problem, graph, greedy));
    const sched::Optimum optimum = sched::schedule_optimally(problem, graph, greedy);
    sched::check_order(problem, optimum.order, optimum.peak);
    CHECK(optimum.bound == optimum.peak);
    CHECK(optimum.peak == lowest_by_brute_force(problem, graph));
  }
}

void test_partitions_pass_the_check() {
  for (uint64_t seed = 0; seed < 300; seed++) {
    const sched::Problem problem = scattered(seed, static_cast<int32_t>(1 + seed % 40));
    const sched::Graph graph = sched::make_graph(problem);
    const std::vector<int32_t> order = layers_of(sched::schedule_greedily(problem, graph, 20));
    for (const int64_t limit : {0, 8, 16, 32, 1000})
      sched::check_partitions(problem, order, sched::partition(problem, order, limit), limit);
  }
}

void test_little_work_gives_the_start_or_better() {
  const sched::Problem problem = scattered(7, 200);
  const sched::Graph graph = sched::make_graph(problem);
  const std::vector<int32_t> start = layers_of(sched::schedule_greedily(problem, graph, 20));
  const int64_t peak = sched::peak_bytes(problem, graph, start);
  for (const int64_t budget : {0, 1000, 1'000'000}) {
    const sched::Optimum optimum = sched::schedule_optimally(problem, graph, start, budget);
    sched::check_order(problem, optimum.order, optimum.peak);
    CHECK(optimum.peak <= peak);
    CHECK(optimum.bound <= optimum.peak);
  }
}

//        +- 1 -+
//    0 --+     +-- 4      and in the branch of 2 another diamond: 2, then 5 and 6, then 3
//        +- 2 -+
void test_branches_nest() {
  sched::Problem problem;
  problem.layers.resize(7);
  const auto tensor = [&](int64_t bytes, int32_t producer, std::vector<int32_t> readers) {
    problem.tensors.push_back({bytes, producer, readers.empty(), std::move(readers)});
  };
  tensor(8, 0, {1, 2});
  tensor(1, 1, {4});
  tensor(2, 2, {5, 6});
  tensor(4, 5, {3});
  tensor(16, 6, {3});
  tensor(1, 3, {4});
  tensor(8, 4, {});
  const sched::Graph graph = sched::make_graph(problem);
  const sched::Branches found = sched::find_branches(problem, graph);
  CHECK(found.branches.size() == 4);
  CHECK(found.begun[1] >= 0 && found.begun[2] >= 0 && found.begun[5] >= 0 && found.begun[6] >= 0);
  const sched::Branch& outer = found.branches[found.begun[2]];
  CHECK(outer.footprint == 2 + 16 + 4 + 1);
  CHECK(outer.ends == 8 + 8);
  CHECK(found.branches[found.begun[5]].outer == found.begun[2]);
  CHECK(found.inner[3] == found.begun[2]);
  CHECK(found.inner[4] == -1);
  // The larger branch first; then 1, which is the last to read what 0 made; of 5 and 6 the one with the larger
  // footprint.
  CHECK((layers_of(sched::schedule_greedily(problem, graph, 100)) == std::vector<int32_t>{0, 2, 1, 6, 5, 3, 4}));
  // Where no branch fits, the number decides.
  CHECK(layers_of(sched::schedule_greedily(problem, graph, 10))[1] == 1);
}

}  // namespace

int main() {
  test_the_optimum_is_that_of_all_orders();
  test_partitions_pass_the_check();
  test_little_work_gives_the_start_or_better();
  test_branches_nest();
  return checks_failed();
}
