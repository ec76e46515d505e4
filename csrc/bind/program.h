// Shared by bind/program.cpp (the Program class) and bind/bound.cpp (the bound call).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bind/arrays.h"
#include "bind/surface.h"
#include "run/callers.h"
#include "run/context.h"

namespace hexane {

inline constexpr int64_t kLongRun = 100'000;  // ns; a run that may take longer releases the GIL

struct Port {
  std::string where;  // "input 'image'", for messages
  pybind11::str name;
  pybind11::str emitted_name;
  DType type;
  pybind11::dtype dtype;
  std::vector<pybind11::ssize_t> shape;
  uint32_t length = 0;  // 1 + the index of the output that gives the valid length of the axis; 0: none
  uint32_t axis = 0;
  SurfaceObject surface = {};  // null unless the port is a surface

  pybind11::array allocate() const;
  void check(const pybind11::array& array) const;     // Checks dtype, byte order and shape; throws Error.
  bool is_dense(const pybind11::array& array) const;  // True if C-contiguous with aligned elements.
};

struct ProgramObject {
  // `made`: a context of an image.
  explicit ProgramObject(std::shared_ptr<run::Context> made);

  std::vector<Port> inputs;
  std::vector<Port> outputs;
  std::shared_ptr<run::Context> context;
  std::unique_ptr<run::Callers> callers;  // contexts of simultaneous calls; the first is `context`
  bool is_long;
};

// A call object over buffers; `self` is the Python object of `program`.
pybind11::object make_bound(pybind11::object self, ProgramObject& program, const pybind11::dict& buffers);

void register_bound(pybind11::module_& m);

}  // namespace hexane
