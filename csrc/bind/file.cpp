// Files for Python, written from buffers, from lists of them, or from weight files.
#include <pybind11/stl.h>

#include <functional>
#include <vector>

#include "bind/arrays.h"
#include "bind/blob.h"
#include "bind/register.h"
#include "core/file.h"

namespace py = pybind11;

namespace hexane {
namespace {

// Calls use(pieces) without the GIL.
template <typename Use>
auto with_pieces(py::handle data, Use use) {
  if (py::isinstance<WeightFile>(data)) {
    const auto& file = py::cast<const WeightFile&>(data);
    const py::gil_scoped_release release;
    return use(file.pieces());
  }
  std::vector<HeldBytes> held;
  if (py::isinstance<py::list>(data)) {
    for (const py::handle piece : data) held.emplace_back("save", piece);
  } else {
    held.emplace_back("save", data);
  }
  std::vector<Bytes> pieces;
  for (const HeldBytes& piece : held) pieces.push_back(piece.bytes());
  const py::gil_scoped_release release;
  return use(std::span<const Bytes>(pieces));
}

void save(const std::string& path, py::handle data, bool sync) {
  with_pieces(data, [&](std::span<const Bytes> pieces) { save_file(path, pieces, sync); });
}

bool has(const std::string& path, py::handle data) {
  return with_pieces(data, [&](std::span<const Bytes> pieces) { return file_has(path, pieces); });
}

}  // namespace

void register_file(py::module_& m) {
  m.def("save_file", &save, py::arg("path"), py::arg("data"), py::arg("sync") = true);
  m.def("file_has", &has, py::arg("path"), py::arg("data"));
  m.def("exchange_folders", &exchange_folders, py::arg("one"), py::arg("other"));
}

}  // namespace hexane
