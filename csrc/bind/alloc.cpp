// The allocator for Python: one int64 array for each field of a buffer, and one array with a row for each gap.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "alloc/bound.h"
#include "alloc/check.h"
#include "alloc/solve.h"
#include "bind/register.h"
#include "core/error.h"

namespace py = pybind11;

namespace hexane {
namespace {

using Array = py::array_t<int64_t, py::array::c_style>;

using MaybeArray = std::optional<Array>;

// Optional properties of buffers, apart from live range and size; None if no buffer has one.
struct Extras {
  MaybeArray alignments;  // Alignment of each buffer; 0: none of its own.
  MaybeArray places;      // Fixed place of each buffer; -1: none.
  MaybeArray gaps;        // Rows (buffer, lower, upper).
};

void check_column(const char* name, const Array& array, py::ssize_t size) {
  if (array.ndim() != 1) fail("alloc", name, ": got ", array.ndim(), " dimensions, need 1");
  if (array.size() != size) fail("alloc", name, ": got length ", array.size(), ", need ", size);
}

alloc::Problem make_problem(const Array& lower, const Array& upper, const Array& size, int64_t alignment,
                            std::optional<int64_t> capacity, const Extras& extras) {
  check_column("lower", lower, lower.size());
  check_column("upper", upper, lower.size());
  check_column("size", size, lower.size());
  if (extras.alignments) check_column("alignments", *extras.alignments, lower.size());
  if (extras.places) check_column("places", *extras.places, lower.size());
  alloc::Problem problem{{}, alignment, capacity};
  problem.buffers.reserve(lower.size());
  for (py::ssize_t i = 0; i < lower.size(); i++) {
    problem.buffers.push_back({lower.at(i), upper.at(i), size.at(i)});
    if (extras.alignments) problem.buffers.back().alignment = extras.alignments->at(i);
    if (extras.places && extras.places->at(i) != -1) problem.buffers.back().at = extras.places->at(i);
  }
  if (!extras.gaps) return problem;
  if (extras.gaps->ndim() != 2 || extras.gaps->shape(1) != 3) fail("alloc", "gaps: need rows of three numbers");
  for (py::ssize_t i = 0; i < extras.gaps->shape(0); i++) {
    const int64_t id = extras.gaps->at(i, 0);
    if (id < 0 || id >= lower.size()) fail("alloc", "gaps: got buffer ", id, ", need less than ", lower.size());
    problem.buffers[id].gaps.push_back({extras.gaps->at(i, 1), extras.gaps->at(i, 2)});
  }
  return problem;
}

py::tuple solve(const Array& lower, const Array& upper, const Array& size, int64_t alignment,
                std::optional<int64_t> capacity, std::optional<int64_t> work_budget, const MaybeArray& alignments,
                const MaybeArray& places, const MaybeArray& gaps) {
  const alloc::Problem problem = make_problem(lower, upper, size, alignment, capacity, {alignments, places, gaps});
  alloc::Options options;
  options.work_budget = work_budget;
  alloc::Solution solution;
  {
    const py::gil_scoped_release release;
    solution = alloc::solve(problem, options);
  }
  return py::make_tuple(Array(solution.offsets.size(), solution.offsets.data()), solution.height, solution.bound);
}

void check(const Array& lower, const Array& upper, const Array& size, const Array& offsets, int64_t height,
           int64_t alignment, std::optional<int64_t> capacity, const MaybeArray& alignments, const MaybeArray& places,
           const MaybeArray& gaps) {
  const alloc::Problem problem = make_problem(lower, upper, size, alignment, capacity, {alignments, places, gaps});
  if (offsets.ndim() != 1) fail("alloc_check", "offsets: got ", offsets.ndim(), " dimensions, need 1");
  const std::vector<int64_t> values(offsets.data(), offsets.data() + offsets.size());
  const py::gil_scoped_release release;
  alloc::check(problem, values, height);
}

int64_t bound(const Array& lower, const Array& upper, const Array& size, int64_t alignment, const MaybeArray& places,
              const MaybeArray& gaps) {
  const alloc::Problem problem = make_problem(lower, upper, size, alignment, {}, {{}, places, gaps});
  const py::gil_scoped_release release;
  return alloc::bound(problem);
}

}  // namespace

void register_alloc(py::module_& m) {
  const alloc::Problem problem;
  const alloc::Options options;
  m.def("alloc_solve", &solve, py::arg("lower"), py::arg("upper"), py::arg("size"),
        py::arg("alignment") = problem.alignment, py::arg("capacity") = problem.capacity,
        py::arg("work_budget") = options.work_budget, py::arg("alignments") = py::none(),
        py::arg("places") = py::none(), py::arg("gaps") = py::none());
  m.def("alloc_check", &check, py::arg("lower"), py::arg("upper"), py::arg("size"), py::arg("offsets"),
        py::arg("height"), py::arg("alignment") = problem.alignment, py::arg("capacity") = problem.capacity,
        py::arg("alignments") = py::none(), py::arg("places") = py::none(), py::arg("gaps") = py::none());
  m.def("alloc_bound", &bound, py::arg("lower"), py::arg("upper"), py::arg("size"),
        py::arg("alignment") = problem.alignment, py::arg("places") = py::none(), py::arg("gaps") = py::none());
}

}  // namespace hexane
