// A surface and the layout of a tensor in it, for Python; shared by bind/surface.cpp and bind/program.h.
#pragma once

#include <pybind11/numpy.h>

#include <memory>

#include "device/surface.h"

namespace hexane {

struct SurfaceObject {
  std::shared_ptr<device::Surface> surface;
  device::Layout layout;

  pybind11::array view() const;  // an array over the surface's memory, which the array keeps alive
};

}  // namespace hexane
