// The allocator for Python: one int64 array per field of a buffer.
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

alloc::Problem make_problem(const Array& lower, const Array& upper, const Array& size, int64_t alignment,
                            std::optional<int64_t> capacity) {
  for (const Array* array : {&lower, &upper, &size}) {
    if (array->ndim() != 1) fail("alloc", "lower, upper, size: got ", array->ndim(), " dimensions, need 1");
    if (array->size() != lower.size())
      fail("alloc", "upper, size: got length ", array->size(), ", need ", lower.size());
  }
  alloc::Problem problem{{}, alignment, capacity};
  problem.buffers.reserve(lower.size());
  for (py::ssize_t i = 0; i < lower.size(); i++) problem.buffers.push_back({lower.at(i), upper.at(i), size.at(i)});
  return problem;
}

py::tuple solve(const Array& lower, const Array& upper, const Array& size, int64_t alignment,
                std::optional<int64_t> capacity, std::optional<int64_t> work_budget) {
  const alloc::Problem problem = make_problem(lower, upper, size, alignment, capacity);
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
           int64_t alignment, std::optional<int64_t> capacity) {
  const alloc::Problem problem = make_problem(lower, upper, size, alignment, capacity);
  if (offsets.ndim() != 1) fail("alloc_check", "offsets: got ", offsets.ndim(), " dimensions, need 1");
  const std::vector<int64_t> values(offsets.data(), offsets.data() + offsets.size());
  const py::gil_scoped_release release;
  alloc::check(problem, values, height);
}

int64_t bound(const Array& lower, const Array& upper, const Array& size, int64_t alignment) {
  const alloc::Problem problem = make_problem(lower, upper, size, alignment, {});
  const py::gil_scoped_release release;
  return alloc::bound(problem);
}

}  // namespace

void register_alloc(py::module_& m) {
  const alloc::Problem problem;
  const alloc::Options options;
  m.def("alloc_solve", &solve, py::arg("lower"), py::arg("upper"), py::arg("size"),
        py::arg("alignment") = problem.alignment, py::arg("capacity") = problem.capacity,
        py::arg("work_budget") = options.work_budget);
  m.def("alloc_check", &check, py::arg("lower"), py::arg("upper"), py::arg("size"), py::arg("offsets"),
        py::arg("height"), py::arg("alignment") = problem.alignment, py::arg("capacity") = problem.capacity);
  m.def("alloc_bound", &bound, py::arg("lower"), py::arg("upper"), py::arg("size"),
        py::arg("alignment") = problem.alignment);
}

}  // namespace hexane
