// The scheduler for Python: a problem made of one array per field, with the solvers and the check as its methods.
#include <pybind11/numpy.h>

#include <pybind11/stl.h>
#include <algorithm>

#include "bind/register.h"
#include "core/error.h"
#include "sched/check.h"
#include "sched/co_issue.h"
#include "sched/graph.h"
#include "sched/greedy.h"
#include "sched/optimal.h"
#include "sched/partition.h"

namespace py = pybind11;

namespace hexane {
namespace {

using Array = py::array_t<int64_t, py::array::c_style>;
using MaybeArray = std::optional<Array>;

constexpr py::ssize_t kPartitionColumns = 5;
constexpr py::ssize_t kChoiceColumns = 6;

int32_t narrow(const char* name, int64_t value) {
  if (value < -1 || value > std::numeric_limits<int32_t>::max()) fail("sched", name, ": got ", value);
  return static_cast<int32_t>(value);
}

void need_column(const char* name, const Array& array, py::ssize_t size) {
  if (array.ndim() != 1 || array.size() != size) fail("sched", name, ": need one column of ", size, " numbers");
}

void need_rows(const char* name, const Array& array, py::ssize_t columns) {
  if (array.ndim() != 2 || array.shape(1) != columns) fail("sched", name, ": need rows of ", columns, " numbers");
}

std::vector<int32_t> to_order(const Array& order) {
  if (order.ndim() != 1) fail("sched", "order: got ", order.ndim(), " dimensions, need 1");
  std::vector<int32_t> layers;
  for (py::ssize_t i = 0; i < order.size(); i++) layers.push_back(narrow("order", order.at(i)));
  return layers;
}

Array to_array(std::span<const int32_t> values) {
  Array array(static_cast<py::ssize_t>(values.size()));
  for (size_t i = 0; i < values.size(); i++) array.mutable_at(static_cast<py::ssize_t>(i)) = values[i];
  return array;
}

class Scheduling {
 public:
  Scheduling(const Array& bytes, const Array& producers, const Array& kept, const Array& reads, int64_t num_layers,
             const MaybeArray& edges, const MaybeArray& scratch, const MaybeArray& rings) {
    need_column("bytes", bytes, bytes.size());
    need_column("producers", producers, bytes.size());
    need_column("kept", kept, bytes.size());
    need_rows("reads", reads, 2);
    if (num_layers < 0 || num_layers > std::numeric_limits<int32_t>::max() / 4)
      fail("sched", "num_layers: got ", num_layers);
    if (scratch) need_column("scratch", *scratch, num_layers);
    if (rings) need_column("rings", *rings, num_layers);
    problem_.layers.resize(num_layers);
    for (py::ssize_t i = 0; i < num_layers; i++) {
      sched::Layer& layer = problem_.layers[i];
      if (scratch) layer.scratch = scratch->at(i);
      if (rings) layer.ring = rings->at(i) != 0;
    }
    for (py::ssize_t i = 0; i < bytes.size(); i++)
      problem_.tensors.push_back({bytes.at(i), narrow("producers", producers.at(i)), kept.at(i) != 0, {}});
    for (py::ssize_t i = 0; i < reads.shape(0); i++) {
      const int64_t tensor = reads.at(i, 0);
      if (tensor < 0 || tensor >= bytes.size()) fail("sched", "reads: got tensor ", tensor);
      problem_.tensors[tensor].readers.push_back(narrow("reads", reads.at(i, 1)));
    }
    if (edges) {
      need_rows("edges", *edges, 2);
      for (py::ssize_t i = 0; i < edges->shape(0); i++)
        problem_.edges.push_back({narrow("edges", edges->at(i, 0)), narrow("edges", edges->at(i, 1))});
    }
    sched::validate(problem_);
    graph_ = sched::make_graph(problem_);
  }

  py::tuple greedy(int64_t ceiling) const {
    std::vector<sched::Choice> choices;
    {
      const py::gil_scoped_release release;
      choices = sched::schedule_greedily(problem_, graph_, ceiling);
    }
    const auto n = static_cast<py::ssize_t>(choices.size());
    Array order(n), rows({n, kChoiceColumns});
    for (py::ssize_t i = 0; i < n; i++) {
      const sched::Score& score = choices[i].score;
      order.mutable_at(i) = score.layer;
      const int64_t row[] = {
          static_cast<int64_t>(choices[i].rule), score.ring, score.branch, score.merge, score.begun, score.footprint};
      std::copy(std::begin(row), std::end(row), rows.mutable_data(i, 0));
    }
    return py::make_tuple(order, rows);
  }

  py::tuple optimal(const Array& start, std::optional<int64_t> work_budget) const {
    std::vector<int32_t> order = to_order(start);
    sched::Optimum optimum;
    {
      const py::gil_scoped_release release;
      sched::check_order(problem_, order);
      optimum = sched::schedule_optimally(problem_, graph_, std::move(order), work_budget);
    }
    return py::make_tuple(to_array(optimum.order), optimum.peak, optimum.bound, optimum.states);
  }

  int64_t peak(const Array& order) const {
    const std::vector<int32_t> layers = to_order(order);
    for (const int32_t layer : layers)
      if (layer < 0 || layer >= static_cast<int64_t>(problem_.layers.size())) fail("sched", "order: got layer ", layer);
    return sched::peak_bytes(problem_, graph_, layers);
  }

  Array partition(const Array& order, int64_t limit) const {
    const std::vector<int32_t> layers = to_order(order);
    sched::check_order(problem_, layers);
    const std::vector<sched::Partition> parts = sched::partition(problem_, layers, limit);
    Array rows({static_cast<py::ssize_t>(parts.size()), kPartitionColumns});
    for (size_t i = 0; i < parts.size(); i++) {
      const int64_t row[] = {parts[i].first, parts[i].end, parts[i].peak, parts[i].loaded, parts[i].stored};
      std::copy(std::begin(row), std::end(row), rows.mutable_data(static_cast<py::ssize_t>(i), 0));
    }
    return rows;
  }

  py::tuple pairs(const Array& layers) const {
    const sched::Pairs pairs = sched::find_pairs(problem_, to_issues(layers));
    Array verdicts(static_cast<py::ssize_t>(pairs.verdict.size()));
    for (size_t i = 0; i < pairs.verdict.size(); i++)
      verdicts.mutable_at(static_cast<py::ssize_t>(i)) = static_cast<int64_t>(pairs.verdict[i]);
    return py::make_tuple(to_array(pairs.partner), verdicts);
  }

  int64_t why_not_together(const Array& layers, int64_t a, int64_t b) const {
    const std::vector<sched::Issue> issues = to_issues(layers);
    for (const int64_t layer : {a, b})
      if (layer < 0 || layer >= static_cast<int64_t>(issues.size())) fail("co_issue", "got layer ", layer);
    return static_cast<int64_t>(
        sched::why_not_together(problem_, issues, static_cast<int32_t>(a), static_cast<int32_t>(b)));
  }

  void check_pairs(const Array& layers, const Array& partners) const {
    sched::check_pairs(problem_, to_issues(layers), to_order(partners));
  }

  void check(const Array& order, int64_t peak) const { sched::check_order(problem_, to_order(order), peak); }

  void check_partitions(const Array& order, const Array& rows, int64_t limit) const {
    need_rows("partitions", rows, kPartitionColumns);
    std::vector<sched::Partition> parts;
    for (py::ssize_t i = 0; i < rows.shape(0); i++)
      parts.push_back({narrow("partitions", rows.at(i, 0)), narrow("partitions", rows.at(i, 1)), rows.at(i, 2),
                       rows.at(i, 3), rows.at(i, 4)});
    sched::check_partitions(problem_, to_order(order), parts, limit);
  }

 private:
  static std::vector<sched::Issue> to_issues(const Array& layers) {
    need_rows("layers", layers, 7);
    std::vector<sched::Issue> issues;
    for (py::ssize_t i = 0; i < layers.shape(0); i++) {
      const int64_t* row = layers.data(i, 0);
      if (row[0] < 0 || row[0] > 2) fail("co_issue", "layer ", i, " unit: got ", row[0], ", need 0..2");
      issues.push_back({static_cast<sched::Unit>(row[0]), narrow("engine", row[1]), narrow("position", row[2]),
                        narrow("partition", row[3]), row[4] != 0, row[5] != 0, row[6] != 0});
    }
    return issues;
  }

  sched::Problem problem_;
  sched::Graph graph_;
};

}  // namespace

void register_sched(py::module_& m) {
  py::class_<Scheduling>(m, "Scheduling")
      .def(py::init<const Array&, const Array&, const Array&, const Array&, int64_t, const MaybeArray&,
                    const MaybeArray&, const MaybeArray&>(),
           py::arg("bytes"), py::arg("producers"), py::arg("kept"), py::arg("reads"), py::arg("num_layers"),
           py::arg("edges") = py::none(), py::arg("scratch") = py::none(), py::arg("rings") = py::none())
      .def("greedy", &Scheduling::greedy, py::arg("ceiling"))
      .def("optimal", &Scheduling::optimal, py::arg("start"), py::arg("work_budget") = py::none())
      .def("peak", &Scheduling::peak, py::arg("order"))
      .def("partition", &Scheduling::partition, py::arg("order"), py::arg("limit"))
      .def("pairs", &Scheduling::pairs, py::arg("layers"))
      .def("why_not_together", &Scheduling::why_not_together, py::arg("layers"), py::arg("a"), py::arg("b"))
      .def("check_pairs", &Scheduling::check_pairs, py::arg("layers"), py::arg("partners"))
      .def("check", &Scheduling::check, py::arg("order"), py::arg("peak"))
      .def("check_partitions", &Scheduling::check_partitions, py::arg("order"), py::arg("partitions"),
           py::arg("limit"));
}

}  // namespace hexane
