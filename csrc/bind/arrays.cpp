#include "bind/arrays.h"

#include <utility>

namespace py = pybind11;

namespace hexane {
namespace {

// The dtypes whose names differ between Hexane and numpy (or ml_dtypes).
constexpr std::pair<std::string_view, const char*> kNumpyNames[] = {
    {"fp16", "float16"},  {"fp32", "float32"},          {"fp64", "float64"},
    {"bf16", "bfloat16"}, {"fp8e4m3", "float8_e4m3fn"}, {"fp8e5m2", "float8_e5m2"},
};

}  // namespace

std::string numpy_name(DType dtype) {
  for (const auto& [ours, numpys] : kNumpyNames)
    if (ours == info(dtype).name) return numpys;
  return std::string(info(dtype).name);
}

py::dtype numpy_dtype(DType dtype) {
  const std::string name = numpy_name(dtype);
  const bool extension = name == "bfloat16" || name.starts_with("float8") || info(dtype).bits < 8;
  return py::dtype::from_args(extension ? py::object(py::module_::import("ml_dtypes").attr(name.c_str()))
                                        : py::object(py::str(name)));
}

py::array as_array(const std::string& where, py::handle object) {
  if (py::isinstance<py::array>(object)) return py::reinterpret_borrow<py::array>(object);
  const py::module_ numpy = py::module_::import("numpy");
  if (PyObject_CheckBuffer(object.ptr()))
    return numpy.attr("asarray")(py::memoryview(py::reinterpret_borrow<py::object>(object)));
  if (py::hasattr(object, "__dlpack__")) return numpy.attr("from_dlpack")(object);
  fail<InputError>(where, "got ", Py_TYPE(object.ptr())->tp_name, ", need an array, a buffer or a DLPack tensor");
}

HeldBytes::HeldBytes(const std::string& where, py::handle object) {
  const py::array array = as_array(where, object);
  if (!(array.flags() & py::array::c_style)) fail(where, "got an array with gaps, need a C-contiguous one");
  bytes_ = {static_cast<const std::byte*>(array.data()), static_cast<size_t>(array.nbytes())};
  owner_ = array;
}

py::str text(std::string_view utf8) {
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), "replace"));
}

}  // namespace hexane
