// The class Surface for Python: write and read arrays, some channels or all, or look at the memory itself.
#include "bind/surface.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <optional>

#include "bind/arrays.h"
#include "bind/register.h"

namespace py = pybind11;

namespace hexane {
namespace {

constexpr int64_t kLongCopy = 1 << 18;  // bytes; a copy that takes longer than a few microseconds releases the GIL

std::string shape_of(const py::array& array) { return py::str(array.attr("shape")).cast<std::string>(); }

// A surface of fp16 takes arrays of fp16 or fp32. Any other surface takes its own dtype only.
DType dtype_of(const py::array& array, DType own) {
  if (array.dtype().equal(numpy_dtype(own))) return own;
  if (own == DType::kFp16 && array.dtype().equal(numpy_dtype(DType::kFp32))) return DType::kFp32;
  fail("surface", "dtype: got ", py::str(array.dtype()).cast<std::string>(), ", need ", numpy_name(own),
       own == DType::kFp16 ? " or float32" : "");
}

template <typename Function>
void copy(int64_t bytes, Function function) {
  std::optional<py::gil_scoped_release> release;
  if (bytes > kLongCopy) release.emplace();
  function();
}

SurfaceObject make_surface(std::vector<int64_t> shape, const std::string& dtype, int64_t row_alignment) {
  device::Layout layout = device::layout_in_rows(dtype_from_name(dtype), shape, row_alignment);
  return {std::make_shared<device::Surface>(layout.bytes()), std::move(layout)};
}

void write_channels(const SurfaceObject& self, py::handle value, int64_t channel_offset) {
  const py::array given = as_array("surface", value);
  const auto& shape = self.layout.shape;
  bool fits = static_cast<size_t>(given.ndim()) == shape.size();
  for (size_t axis = 0; fits && axis < shape.size(); ++axis)
    fits = axis == 1 || given.shape(static_cast<py::ssize_t>(axis)) == shape[axis];
  if (!fits)
    fail("surface", "shape: got ", shape_of(given), ", need ", py::str(py::tuple(py::cast(shape))).cast<std::string>(),
         shape.size() > 1 ? ", or fewer channels along axis 1" : "");
  const DType dtype = dtype_of(given, self.layout.dtype);
  const py::array array = given.flags() & py::array::c_style ? given : py::array(given.attr("copy")("C"));
  const device::Channels channels{channel_offset, shape.size() > 1 ? array.shape(1) : 1};
  const auto* from = static_cast<const std::byte*>(array.data());
  copy(array.nbytes(), [&] { device::write(*self.surface, self.layout, channels, dtype, from); });
}

// Returns the caller's array for the result if it fits.
py::array checked_out(py::handle value, const std::vector<py::ssize_t>& shape, const SurfaceObject& self) {
  if (!py::isinstance<py::array>(value)) fail("surface", "out: got no NumPy array, need one");
  const auto array = py::reinterpret_borrow<py::array>(value);
  if (!std::equal(shape.begin(), shape.end(), array.shape(), array.shape() + array.ndim()))
    fail("surface", "out: got the shape ", shape_of(array), ", need ",
         py::str(py::tuple(py::cast(shape))).cast<std::string>());
  if (!(array.flags() & py::array::c_style) || !array.writeable())
    fail("surface", "out: got an array that is not C-contiguous or not writeable, need one that is both");
  const auto first = reinterpret_cast<uintptr_t>(array.data());
  const auto own = reinterpret_cast<uintptr_t>(self.surface->data());
  if (first < own + self.surface->bytes() && own < first + static_cast<uintptr_t>(array.nbytes()))
    fail("surface", "out: got memory of the surface itself, need other memory");
  return array;
}

py::array read_channels(const SurfaceObject& self, int64_t channel_offset, std::optional<int64_t> num_channels,
                        const std::optional<std::string>& dtype, const std::optional<py::object>& out) {
  const device::Channels all = device::all_channels(self.layout);
  const int64_t rest = channel_offset < 0 ? all.count : all.count - channel_offset;
  const device::Channels channels{channel_offset, num_channels.value_or(rest)};
  DType kind = dtype ? dtype_from_name(*dtype) : self.layout.dtype;
  device::check_channels(self.layout, channels, kind);
  std::vector<py::ssize_t> shape(self.layout.shape.begin(), self.layout.shape.end());
  if (shape.size() > 1) shape[1] = channels.count;
  py::array result = out ? checked_out(*out, shape, self) : py::array(numpy_dtype(kind), shape);
  if (out) {
    const DType given = dtype_of(result, self.layout.dtype);
    if (dtype && given != kind) fail("surface", "out: got ", info(given).name, ", need ", info(kind).name);
    kind = given;
  }
  auto* to = static_cast<std::byte*>(result.mutable_data());
  copy(result.nbytes(), [&] { device::read(*self.surface, self.layout, channels, kind, to); });
  return result;
}

// `with surface.access(read_only=True):`
struct Accessing {
  Accessing(std::shared_ptr<device::Surface> its_surface, bool is_read_only)
      : surface(std::move(its_surface)), read_only(is_read_only) {}
  const std::shared_ptr<device::Surface> surface;
  const bool read_only;
  std::unique_ptr<device::Surface::Access> access;
};

}  // namespace

py::array SurfaceObject::view() const {
  using Held = std::shared_ptr<device::Surface>;
  const py::capsule owner(std::make_unique<Held>(surface).release(),
                          [](void* held) { std::default_delete<Held>()(static_cast<Held*>(held)); });
  return py::array(numpy_dtype(layout.dtype), layout.shape, layout.strides, surface->data(), owner);
}

void register_surface(py::module_& m) {
  py::class_<Accessing>(m, "SurfaceAccess")
      .def("__enter__",
           [](Accessing& self) {
             if (self.access) fail("surface", "got an access that is under way, need a new one");
             self.access = std::make_unique<device::Surface::Access>(*self.surface, self.read_only);
           })
      .def("__exit__", [](Accessing& self, const py::args&) { self.access.reset(); });
  py::class_<SurfaceObject>(m, "Surface")
      .def(py::init(&make_surface), py::arg("shape"), py::arg("dtype"), py::arg("row_alignment"))
      .def_property_readonly("shape", [](const SurfaceObject& self) { return py::tuple(py::cast(self.layout.shape)); })
      .def_property_readonly("strides",
                             [](const SurfaceObject& self) { return py::tuple(py::cast(self.layout.strides)); })
      .def_property_readonly("dtype", [](const SurfaceObject& self) { return text(info(self.layout.dtype).name); })
      .def_property_readonly("bytes", [](const SurfaceObject& self) { return self.surface->bytes(); })
      .def("write", &write_channels, py::arg("array"), py::arg("channel_offset") = 0)
      .def("read", &read_channels, py::arg("channel_offset") = 0, py::arg("num_channels") = py::none(),
           py::arg("dtype") = py::none(), py::arg("out") = py::none())
      .def("view", &SurfaceObject::view)
      .def(
          "access",
          [](const SurfaceObject& self, bool read_only) {
            return std::make_unique<Accessing>(self.surface, read_only);
          },
          py::arg("read_only") = false);
}

}  // namespace hexane
