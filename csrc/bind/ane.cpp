// What `hexane doctor` asks of the Neural Engine: what its framework has, and one run of a program.
#include <pybind11/stl.h>

#include <map>

#include "bind/arrays.h"
#include "bind/register.h"
#include "device/ane_device.h"
#include "device/surface.h"

namespace py = pybind11;

namespace hexane {
namespace {

device::Layout layout_of(const device::Port& port) {
  return {port.dtype,
          {port.shape.begin(), port.shape.end()},
          {static_cast<int64_t>(port.batch_stride), static_cast<int64_t>(port.plane_stride),
           static_cast<int64_t>(port.row_stride), info(port.dtype).bits / 8}};
}

py::dict describe(const device::Port& port) {
  const device::Layout layout = layout_of(port);
  return py::dict(py::arg("name") = text(port.name), py::arg("dtype") = text(info(port.dtype).name),
                  py::arg("shape") = py::tuple(py::cast(layout.shape)),
                  py::arg("strides") = py::tuple(py::cast(layout.strides)));
}

// (the inputs, the outputs, {name: array of an output}) of the program, which is compiled, loaded, run once and let go.
py::tuple run_once(const device::AneSetup& setup, const std::string& mil,
                   const std::map<std::string, py::bytes>& weights, const std::map<std::string, py::array>& inputs,
                   uint64_t least_surface_bytes, uint32_t qos) {
  std::vector<device::WeightFile> files;
  for (const auto& [name, bytes] : weights) {
    const std::string_view view = bytes;
    files.push_back({name, std::as_bytes(std::span(view.data(), view.size()))});
  }
  std::map<std::string, const py::array*> given;
  for (const auto& [name, array] : inputs) given[name] = &array;

  std::unique_ptr<device::Program> program;
  {
    const py::gil_scoped_release release;
    program = device::ane_device(setup)->compile(mil, files, qos);
    program->load(qos);
  }
  std::vector<std::shared_ptr<device::Surface>> surfaces;
  py::list sides[2];
  py::dict results;
  for (const device::Port& port : program->inputs()) {
    surfaces.push_back(std::make_shared<device::Surface>(std::max(port.bytes(), least_surface_bytes)));
    sides[0].append(describe(port));
    const auto found = given.find(port.name);
    const device::Layout layout = layout_of(port);
    if (found == given.end()) fail("ane", "input ", port.name, ": got nothing, need an array");
    const py::array& array = *found->second;
    const py::array wanted(numpy_dtype(port.dtype), std::vector<py::ssize_t>(port.shape.begin(), port.shape.end()));
    if (!array.dtype().equal(wanted.dtype()) || array.nbytes() != wanted.nbytes() ||
        !(array.flags() & py::array::c_style))
      fail("ane", "input ", port.name, ": got another array than the port takes");
    device::write(*surfaces.back(), layout, device::all_channels(layout), port.dtype,
                  static_cast<const std::byte*>(array.data()));
  }
  for (const device::Port& port : program->outputs()) {
    surfaces.push_back(std::make_shared<device::Surface>(std::max(port.bytes(), least_surface_bytes)));
    sides[1].append(describe(port));
  }
  const std::span all(surfaces);
  const size_t num_inputs = program->inputs().size();
  {
    const py::gil_scoped_release release;
    program->request(all.first(num_inputs), all.subspan(num_inputs))->evaluate(qos);
  }
  for (size_t i = 0; i < program->outputs().size(); ++i) {
    const device::Port& port = program->outputs()[i];
    const device::Layout layout = layout_of(port);
    py::array array(numpy_dtype(port.dtype), std::vector<py::ssize_t>(port.shape.begin(), port.shape.end()));
    device::read(*surfaces[num_inputs + i], layout, device::all_channels(layout), port.dtype,
                 static_cast<std::byte*>(array.mutable_data()));
    results[text(port.name)] = array;
  }
  return py::make_tuple(sides[0], sides[1], results);
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
  m.def("probe_ane", [](const device::AneSetup& setup) {
    py::list findings;
    for (const device::AneFinding& finding : device::probe_ane(setup))
      findings.append(py::make_tuple(text(finding.kind), text(finding.name), text(finding.found), text(finding.need)));
    return findings;
  });
  m.def("run_on_ane", &run_once, py::arg("setup"), py::arg("mil"), py::arg("weights"), py::arg("inputs"), py::kw_only(),
        py::arg("least_surface_bytes"), py::arg("qos"));
  m.def("ane_counters", [](const device::AneSetup& setup) {
    const device::Counters now = device::ane_device(setup)->counters();
    return py::make_tuple(now.compiled, now.loaded, now.compiles_in_loads);
  });
}

}  // namespace hexane
