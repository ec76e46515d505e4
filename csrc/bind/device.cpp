// Devices and their programs for Python.
#include "device/device.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <cstring>

#include "bind/arrays.h"
#include "bind/device_run.h"
#include "bind/register.h"
#include "device/ane_device.h"
#include "run/plan_device.h"

namespace py = pybind11;

namespace hexane {
namespace {

py::list port_infos(const std::vector<device::Port>& ports) {
  py::list result;
  for (const device::Port& port : ports)
    result.append(py::dict(py::arg("name") = port.name, py::arg("dtype") = text(info(port.dtype).name),
                           py::arg("shape") = py::tuple(py::cast(port.shape)),
                           py::arg("strides") = py::make_tuple(port.batch_stride, port.plane_stride, port.row_stride,
                                                               info(port.dtype).bits / 8),
                           py::arg("bytes") = port.bytes()));
  return result;
}

// Converts {name: bytes} to files that keep the bytes alive.
struct Files {
  explicit Files(const py::dict& given) {
    for (const auto& [name, bytes] : given) {
      held.emplace_back("files", bytes);
      files.push_back({py::str(name).cast<std::string>(), held.back().bytes()});
    }
  }
  std::vector<HeldBytes> held;
  std::vector<device::WeightFile> files;
};

std::shared_ptr<device::Program> compile(device::Device& self, const std::string& mil, const py::dict& weights,
                                         uint32_t qos) {
  const Files given(weights);
  const py::gil_scoped_release release;
  return self.compile(mil, given.files, qos);
}

std::shared_ptr<device::Program> find(device::Device& self, const std::string& mil, const py::dict& weights) {
  const Files given(weights);
  const py::gil_scoped_release release;
  return self.find(mil, given.files);
}

// to_plan(mil, {name: bytes}) -> bytes of a plan
std::unique_ptr<device::Device> make_plan_device(const py::function& to_plan, int64_t row_alignment) {
  const auto held =
      std::shared_ptr<py::function>(std::make_unique<py::function>(to_plan).release(), [](auto* function) {
        const py::gil_scoped_acquire acquire;
        std::default_delete<py::function>()(function);
      });
  const auto call = [held](std::string_view mil, std::span<const device::WeightFile> weights) {
    const py::gil_scoped_acquire acquire;
    py::dict files;
    for (const device::WeightFile& file : weights)
      files[py::str(file.name)] = py::bytes(reinterpret_cast<const char*>(file.bytes.data()), file.bytes.size());
    const HeldBytes plan("plan", (*held)(py::str(mil.data(), mil.size()), files));
    return std::vector<std::byte>(plan.bytes().begin(), plan.bytes().end());
  };
  return run::plan_device(call, row_alignment);
}

device::Port make_port(const py::dict& row) {
  const auto shape = row["shape"].cast<std::array<int64_t, 4>>();
  const auto strides = row["strides"].cast<std::array<uint64_t, 4>>();
  return {row["name"].cast<std::string>(),
          dtype_from_name(row["dtype"].cast<std::string>()),
          shape,
          strides[2],
          strides[1],
          strides[0]};
}

std::unique_ptr<device::Device> make_null_device(const std::vector<py::dict>& inputs,
                                                 const std::vector<py::dict>& outputs) {
  std::vector<device::Port> sides[2];
  for (const py::dict& row : inputs) sides[0].push_back(make_port(row));
  for (const py::dict& row : outputs) sides[1].push_back(make_port(row));
  return device::null_device(sides[0], sides[1]);
}

// A Python object that any thread may release.
std::shared_ptr<py::object> held_object(py::object object) {
  return {std::make_unique<py::object>(std::move(object)).release(), [](auto* held) {
            const py::gil_scoped_acquire acquire;
            std::default_delete<py::object>()(held);
          }};
}

// Returns the bytes of a surface as an array that keeps it alive.
py::array surface_bytes(const std::shared_ptr<device::Surface>& surface, bool writable) {
  auto kept = std::make_unique<std::shared_ptr<device::Surface>>(surface);
  const py::capsule owner(kept.get(), [](void* object) {
    std::default_delete<std::shared_ptr<device::Surface>>()(static_cast<std::shared_ptr<device::Surface>*>(object));
  });
  kept.release();
  py::array_t<uint8_t> array(static_cast<py::ssize_t>(surface->bytes()), reinterpret_cast<uint8_t*>(surface->data()),
                             owner);
  if (!writable) array.attr("flags").attr("writeable") = false;
  return array;
}

// bind(*bytes of the inputs' surfaces, *bytes of the outputs') -> function(), which is called in every run
std::shared_ptr<device::Program> make_callback_program(const std::vector<py::dict>& inputs,
                                                       const std::vector<py::dict>& outputs, py::function bind) {
  std::vector<device::Port> sides[2];
  for (const py::dict& row : inputs) sides[0].push_back(make_port(row));
  for (const py::dict& row : outputs) sides[1].push_back(make_port(row));
  const auto held = held_object(std::move(bind));
  const auto bound = [held](const std::vector<std::shared_ptr<device::Surface>>& surfaces, size_t num_inputs) {
    const py::gil_scoped_acquire acquire;
    py::list arrays;
    for (size_t i = 0; i < surfaces.size(); ++i) arrays.append(surface_bytes(surfaces[i], i >= num_inputs));
    const auto function = held_object((*held)(*arrays));
    return [function] {
      const py::gil_scoped_acquire acquire;
      try {
        (*function)();
      } catch (const py::error_already_set& error) {
        fail("callback", py::str(error.value()).cast<std::string>());
      }
    };
  };
  return device::callback_program(sides[0], sides[1], bound);
}

}  // namespace

void register_device(py::module_& m) {
  m.attr("NO_ANSWER") = device::kNoAnswer;
  using release = py::call_guard<py::gil_scoped_release>;
  py::class_<device::Program, std::shared_ptr<device::Program>>(m, "DeviceProgram")
      .def("load", &device::Program::load, py::arg("qos"), release())
      .def("unload", &device::Program::unload, release())
      .def("purge", &device::Program::purge, release())
      .def("attributes", &device::Program::attributes, py::arg("qos"), release())
      .def("run", &run_program, py::arg("inputs"), py::kw_only(), py::arg("qos"),
           py::arg("surface_bytes") = std::vector<uint64_t>(), py::arg("least_surface_bytes") = 0)
      .def_property_readonly("inputs", [](const device::Program& self) { return port_infos(self.inputs()); })
      .def_property_readonly("outputs", [](const device::Program& self) { return port_infos(self.outputs()); });
  py::class_<device::Device>(m, "Device")
      .def_property_readonly("name", &device::Device::name)
      .def("compile", &compile, py::arg("mil"), py::arg("weights"), py::arg("qos"))
      .def("find", &find, py::arg("mil"), py::arg("weights"))
      .def_property_readonly("counters", [](const device::Device& self) {
        const device::Counters counters = self.counters();
        return py::dict(py::arg("compiled") = counters.compiled, py::arg("compile_limit") = counters.compile_limit,
                        py::arg("loaded") = counters.loaded, py::arg("load_limit") = counters.load_limit,
                        py::arg("compiles_in_loads") = counters.compiles_in_loads);
      });
  m.def("ane_device", &device::ane_device, py::arg("setup"), release());
  m.def("plan_device", &make_plan_device, py::arg("to_plan"), py::arg("row_alignment"));
  m.def("callback_program", &make_callback_program, py::arg("inputs"), py::arg("outputs"), py::arg("bind"));
  m.def("null_device", &make_null_device, py::arg("inputs"), py::arg("outputs"));
}

}  // namespace hexane
