// Runs a loaded program once, on surfaces of its own.
#pragma once

#include <pybind11/numpy.h>

#include <map>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/surface.h"

namespace hexane {

device::Layout layout_of(const device::Port& port);

// Returns {name: array of an output}. surface_bytes: sizes of the surfaces, inputs first, raised to their ports' needs.
// A missing or zero size means the largest need of all inputs or all outputs, and at least least_surface_bytes.
pybind11::dict run_program(device::Program& program, const std::map<std::string, pybind11::array>& inputs, uint32_t qos,
                           const std::vector<uint64_t>& surface_bytes, uint64_t least_surface_bytes);

}  // namespace hexane
