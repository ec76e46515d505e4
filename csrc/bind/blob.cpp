// Weight files of MIL programs.
#include "pack/blob.h"

#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "bind/arrays.h"
#include "bind/register.h"

namespace py = pybind11;

namespace hexane {
namespace {

std::pair<py::bytes, std::vector<uint64_t>> blob_write(const std::vector<std::pair<std::string, py::object>>& arrays) {
  std::vector<HeldBytes> held;
  std::vector<blob::Array> given;
  held.reserve(arrays.size());
  for (const auto& [dtype, array] : arrays) {
    held.emplace_back("blob_write", array);
    given.push_back({.dtype = dtype_from_name(dtype), .elements = held.back().bytes()});
  }
  const auto without_gil = [](const auto& work) {
    const py::gil_scoped_release release;
    return work();
  };
  const blob::Layout layout = without_gil([&] { return blob::lay_out(given); });
  auto file =
      py::reinterpret_steal<py::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(layout.bytes)));
  if (!file) throw py::error_already_set();
  const std::span<std::byte> bytes(reinterpret_cast<std::byte*>(PyBytes_AS_STRING(file.ptr())), layout.bytes);
  without_gil([&] { blob::write(given, layout, bytes); });
  return {file, layout.offsets};
}

std::pair<std::string, py::array> blob_read(py::handle data, uint64_t offset) {
  const HeldBytes held("blob_read", data);
  const blob::Blob found = blob::read(held.bytes(), offset);
  const std::string name(info(found.dtype).name);
  if (info(found.dtype).bits >= 8) {
    py::array_t<uint8_t> view({static_cast<py::ssize_t>(found.payload.size())}, {},
                              reinterpret_cast<const uint8_t*>(found.payload.data()), held.owner());
    view.attr("flags").attr("writeable") = false;
    return {name, view};
  }
  py::array_t<uint8_t> elements(static_cast<py::ssize_t>(found.count));
  blob::unpack(found, std::as_writable_bytes(std::span(elements.mutable_data(), found.count)));
  return {name, elements};
}

}  // namespace

void register_blob(py::module_& m) {
  m.def("blob_write", &blob_write, py::arg("arrays"));
  m.def("blob_read", &blob_read, py::arg("data"), py::arg("offset"));
}

}  // namespace hexane
