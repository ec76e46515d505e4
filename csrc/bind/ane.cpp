// The checks of `hexane doctor`: the classes of the Neural Engine's framework, and one run of a program.
#include <pybind11/stl.h>

#include <map>

#include "bind/arrays.h"
#include "bind/device_run.h"
#include "bind/register.h"
#include "device/ane_device.h"
#include "device/surface.h"

namespace py = pybind11;

namespace hexane {
namespace {

py::dict describe(const device::Port& port) {
  const device::Layout layout = layout_of(port);
  return py::dict(py::arg("name") = text(port.name), py::arg("dtype") = text(info(port.dtype).name),
                  py::arg("shape") = py::tuple(py::cast(layout.shape)),
                  py::arg("strides") = py::tuple(py::cast(layout.strides)));
}

// Compiles, loads, runs once and releases a program. Returns (inputs, outputs, {name: array of an output}).
py::tuple run_once(const device::AneSetup& setup, const std::string& mil,
                   const std::map<std::string, py::bytes>& weights, const std::map<std::string, py::array>& inputs,
                   uint64_t least_surface_bytes, uint32_t qos) {
  std::vector<device::WeightFile> files;
  for (const auto& [name, bytes] : weights) {
    const std::string_view view = bytes;
    files.push_back({name, std::as_bytes(std::span(view.data(), view.size()))});
  }
  std::unique_ptr<device::Program> program;
  {
    const py::gil_scoped_release release;
    program = device::ane_device(setup)->compile(mil, files, qos);
    program->load(qos);
  }
  py::list sides[2];
  for (const device::Port& port : program->inputs()) sides[0].append(describe(port));
  for (const device::Port& port : program->outputs()) sides[1].append(describe(port));
  return py::make_tuple(sides[0], sides[1], run_program(*program, inputs, qos, {}, least_surface_bytes));
}

}  // namespace

void register_ane(py::module_& m) {
  py::class_<device::AneSetup>(m, "AneSetup")
      .def(py::init([](std::string library, std::string framework, uint32_t compile_limit, uint32_t load_limit,
                       uint32_t load_retry_ms, uint32_t build_limit_ms, uint32_t evaluate_limit_ms) {
             return device::AneSetup{.library = std::move(library),
                                     .framework = std::move(framework),
                                     .compile_limit = compile_limit,
                                     .load_limit = load_limit,
                                     .load_retry_ms = load_retry_ms,
                                     .build_limit_ms = build_limit_ms,
                                     .evaluate_limit_ms = evaluate_limit_ms};
           }),
           py::kw_only(), py::arg("library"), py::arg("framework"), py::arg("compile_limit"), py::arg("load_limit"),
           py::arg("load_retry_ms"), py::arg("build_limit_ms") = 0, py::arg("evaluate_limit_ms") = 0);
  const auto rows = [](const std::vector<device::AneFinding>& findings) {
    py::list result;
    for (const device::AneFinding& finding : findings)
      result.append(py::make_tuple(text(finding.kind), text(finding.name), text(finding.found), text(finding.need)));
    return result;
  };
  m.def("probe_ane", [rows](const device::AneSetup& setup) { return rows(device::probe_ane(setup)); });
  m.def("ane_methods", [rows](const device::AneSetup& setup) { return rows(device::ane_methods(setup)); });
  m.def("run_on_ane", &run_once, py::arg("setup"), py::arg("mil"), py::arg("weights"), py::arg("inputs"), py::kw_only(),
        py::arg("least_surface_bytes"), py::arg("qos"));
  m.def("ane_counters", [](const device::AneSetup& setup) {
    const device::Counters now = device::ane_device(setup)->counters();
    return py::make_tuple(now.compiled, now.loaded, now.compiles_in_loads);
  });
}

}  // namespace hexane
