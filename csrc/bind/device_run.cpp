#include "bind/device_run.h"

#include <algorithm>
#include <memory>
#include <span>

#include "bind/arrays.h"

namespace py = pybind11;

namespace hexane {
namespace {

std::vector<py::ssize_t> shape_of(const device::Port& port) { return {port.shape.begin(), port.shape.end()}; }

void write_input(const device::Port& port, const std::map<std::string, py::array>& inputs,
                 const device::Surface& surface) {
  const auto found = inputs.find(port.name);
  if (found == inputs.end()) fail("ane", "input ", port.name, ": got nothing, need an array");
  const py::array& array = found->second;
  const py::array wanted(numpy_dtype(port.dtype), shape_of(port));
  if (!array.dtype().equal(wanted.dtype()) || array.nbytes() != wanted.nbytes() ||
      !(array.flags() & py::array::c_style))
    fail("ane", "input ", port.name, ": got another array than the port takes");
  const device::Layout layout = layout_of(port);
  device::write(surface, layout, device::all_channels(layout), port.dtype, static_cast<const std::byte*>(array.data()));
}

}  // namespace

device::Layout layout_of(const device::Port& port) {
  return {port.dtype,
          {port.shape.begin(), port.shape.end()},
          {static_cast<int64_t>(port.batch_stride), static_cast<int64_t>(port.plane_stride),
           static_cast<int64_t>(port.row_stride), info(port.dtype).bits / 8}};
}

py::dict run_program(device::Program& program, const std::map<std::string, py::array>& inputs, uint32_t qos,
                     const std::vector<uint64_t>& surface_bytes, uint64_t least_surface_bytes) {
  std::vector<device::Port> ports = program.inputs();
  const size_t num_inputs = ports.size();
  ports.insert(ports.end(), program.outputs().begin(), program.outputs().end());
  // Unless the caller gives sizes, all input surfaces have the same size, and all output surfaces have the same size.
  uint64_t side_bytes[2] = {least_surface_bytes, least_surface_bytes};
  for (size_t i = 0; i < ports.size(); ++i) {
    uint64_t& most = side_bytes[i >= num_inputs];
    most = std::max(most, ports[i].bytes());
  }
  std::vector<std::shared_ptr<device::Surface>> surfaces;
  for (size_t i = 0; i < ports.size(); ++i) {
    const uint64_t asked = i < surface_bytes.size() ? surface_bytes[i] : 0;
    const uint64_t bytes = std::max(ports[i].bytes(), asked ? asked : side_bytes[i >= num_inputs]);
    surfaces.push_back(std::make_shared<device::Surface>(bytes));
    if (i < num_inputs) write_input(ports[i], inputs, *surfaces[i]);
  }
  const std::span all(surfaces);
  {
    const py::gil_scoped_release release;
    program.request(all.first(num_inputs), all.subspan(num_inputs))->evaluate(qos);
  }
  py::dict results;
  for (size_t i = num_inputs; i < ports.size(); ++i) {
    const device::Layout layout = layout_of(ports[i]);
    py::array array(numpy_dtype(ports[i].dtype), shape_of(ports[i]));
    device::read(*surfaces[i], layout, device::all_channels(layout), ports[i].dtype,
                 static_cast<std::byte*>(array.mutable_data()));
    results[text(ports[i].name)] = array;
  }
  return results;
}

}  // namespace hexane
