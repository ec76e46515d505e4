// Files for Python, written from buffers, from lists of them, or from weight files.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <functional>
#include <vector>

#include "bind/arrays.h"
#include "bind/blob.h"
#include "bind/register.h"
#include "core/file.h"
#include "core/file_mapping.h"

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

// Returns the file's bytes [begin, begin + size) as a read-only array, which keeps the mapping.
py::array part_of(py::object self, uint64_t begin, uint64_t size) {
  const Bytes bytes = py::cast<const FileMapping&>(self).bytes();
  if (begin > bytes.size() || size > bytes.size() - begin)
    fail("load", "part: got ", size, " bytes from byte ", begin, " on, need a part of the file's ", bytes.size());
  py::array result(py::dtype::of<uint8_t>(), {static_cast<py::ssize_t>(size)}, bytes.data() + begin, std::move(self));
  result.attr("setflags")(py::arg("write") = false);
  return result;
}

py::bytes copy_of(const FileMapping& self, uint64_t begin, uint64_t size) {
  if (begin > self.bytes().size() || size > self.bytes().size() - begin)
    fail("load", "read: got ", size, " bytes from byte ", begin, " on, need a part of the file's ",
         self.bytes().size());
  auto result = py::reinterpret_steal<py::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<py::ssize_t>(size)));
  if (!result) throw py::error_already_set();
  auto* to = reinterpret_cast<std::byte*>(PyBytes_AS_STRING(result.ptr()));
  const py::gil_scoped_release release;
  self.read(begin, {to, static_cast<size_t>(size)});
  return result;
}

}  // namespace

void register_file(py::module_& m) {
  m.def("save_file", &save, py::arg("path"), py::arg("data"), py::arg("sync") = true);
  m.def("file_has", &has, py::arg("path"), py::arg("data"));
  py::class_<FileMapping, std::shared_ptr<FileMapping>>(m, "FileMapping")
      .def_static("map", &FileMapping::map, py::arg("descriptor"), py::arg("where"))
      .def_static(
          "of", [](const py::array& array) { return FileMapping::at(array.data()); }, py::arg("array"))
      .def("part", &part_of, py::arg("begin"), py::arg("size"))
      .def("read", &copy_of, py::arg("begin"), py::arg("size"))
      .def("release", [](const FileMapping& self) { self.release(self.bytes()); })
      .def("check_unchanged", &FileMapping::check_unchanged);
  m.def("exchange_folders", &exchange_folders, py::arg("one"), py::arg("other"));
}

}  // namespace hexane
