// The bound call: a raw CPython object whose vectorcall runs a program on buffers that were checked once. No pybind11
// on that path, no allocation, and the GIL is only released where a run is long.
#include <Python.h>
#include <structmember.h>

#include <algorithm>
#include <vector>

#include "bind/program.h"
#include "bind/register.h"

namespace py = pybind11;

namespace hexane {
namespace {

struct Bound {
  PyObject_HEAD vectorcallfunc vectorcall;
  run::Program* program;
  run::Program::Ports* ports;
  PyObject* owner;   // the Python object of the program
  PyObject* inputs;  // dict of arrays by port name, which hold the buffers
  PyObject* outputs;
  bool is_long;
};

void set_error(const std::exception& error) {
  const py::object type = py::module_::import("hexane.errors").attr("Error");
  py::set_error(type, error.what());
}

PyObject* call(PyObject* object, PyObject* const*, size_t nargsf, PyObject* names) {
  if (PyVectorcall_NARGS(nargsf) || (names && PyTuple_GET_SIZE(names))) {
    PyErr_SetString(PyExc_TypeError, "a bound call takes no arguments: its buffers are given to bind()");
    return nullptr;
  }
  auto* self = reinterpret_cast<Bound*>(object);
  try {
    if (self->is_long || !self->program->try_run(*self->ports)) {
      const py::gil_scoped_release release;
      self->program->run(*self->ports);
    }
  } catch (const std::exception& error) {
    set_error(error);
    return nullptr;
  }
  Py_RETURN_NONE;
}

void deallocate(PyObject* object) {
  auto* self = reinterpret_cast<Bound*>(object);
  const std::unique_ptr<run::Program::Ports> ports(self->ports);
  Py_CLEAR(self->inputs);
  Py_CLEAR(self->outputs);
  Py_CLEAR(self->owner);
  PyTypeObject* type = Py_TYPE(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Bound, vectorcall), READONLY, nullptr},
    {"inputs", T_OBJECT_EX, offsetof(Bound, inputs), READONLY, "The bound input arrays, by port name."},
    {"outputs", T_OBJECT_EX, offsetof(Bound, outputs), READONLY, "The bound output arrays, by port name."},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_members, members},
    {Py_tp_doc, const_cast<char*>("A program with its buffers: calling it runs the program on them.")},
    {0, nullptr}};

PyType_Spec spec = {"hexane._core.Bound", sizeof(Bound), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

// Made by register_bound(), lives as long as the module.
PyTypeObject* bound_type = nullptr;

struct Buffer {
  const Port* port;
  const std::byte* begin;
  const std::byte* end;
  bool written;
};

void check_overlaps(std::vector<Buffer> buffers) {
  std::sort(buffers.begin(), buffers.end(), [](const Buffer& a, const Buffer& b) { return a.begin < b.begin; });
  const Buffer* last = nullptr;     // the buffer that reaches farthest so far
  const Buffer* written = nullptr;  // the output that does
  for (const Buffer& buffer : buffers) {
    if (buffer.begin == buffer.end) continue;
    const Buffer* before = buffer.written ? last : written;
    if (before && before->end > buffer.begin)
      fail(buffer.port->where, "its buffer overlaps that of ", before->port->where, ", need memory of its own");
    if (!last || buffer.end > last->end) last = &buffer;
    if (buffer.written && (!written || buffer.end > written->end)) written = &buffer;
  }
}

py::array bound_array(const Port& port, py::handle buffer, bool written) {
  py::array array = as_array(port.where, buffer);
  port.check(array);
  if (!(array.flags() & py::array::c_style))
    fail(port.where, "strides: got ", py::str(array.attr("strides")).cast<std::string>(), ", need C-contiguous");
  if (!port.is_dense(array))
    fail(port.where, "address: got ", array.data(), ", need it aligned to ", array.itemsize(), " bytes");
  if (written && !array.writeable()) fail(port.where, "got a read-only buffer, need a writable one");
  return array;
}

}  // namespace

py::object make_bound(py::object self, ProgramObject& program, const py::dict& buffers) {
  auto ports = std::make_unique<run::Program::Ports>();
  std::vector<Buffer> ranges;
  py::dict inputs, outputs;
  size_t given = 0;
  for (const bool written : {false, true})
    for (const Port& port : written ? program.outputs : program.inputs) {
      // A name that an input has too means the input.
      const bool named = !written || !inputs.contains(port.name);
      PyObject* buffer = named ? PyDict_GetItemWithError(buffers.ptr(), port.name.ptr()) : nullptr;
      given += buffer != nullptr;
      if (!buffer && !written) fail(port.where, "got nothing, need a buffer");
      const py::array array = buffer ? bound_array(port, buffer, written) : port.allocate();
      auto* data = static_cast<std::byte*>(const_cast<void*>(array.data()));
      ports->addresses.push_back(data);
      ranges.push_back({&port, data, data + array.nbytes(), written});
      (written ? outputs : inputs)[port.name] = array;
    }
  if (given != buffers.size())
    for (const auto& item : buffers)
      if (!inputs.contains(item.first) && !outputs.contains(item.first))
        fail("program", "bind: got the name ", py::repr(item.first).cast<std::string>(), ", which no port has");
  check_overlaps(ranges);
  ports->id = program.program->new_id();

  auto* bound = PyObject_New(Bound, bound_type);
  if (!bound) throw py::error_already_set();
  bound->vectorcall = call;
  bound->program = program.program.get();
  bound->ports = ports.release();
  bound->owner = self.release().ptr();
  bound->inputs = inputs.release().ptr();
  bound->outputs = outputs.release().ptr();
  bound->is_long = program.is_long;
  return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(bound));
}

void register_bound(py::module_& m) {
  bound_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (!bound_type) throw py::error_already_set();
  m.add_object("Bound", reinterpret_cast<PyObject*>(bound_type));
}

}  // namespace hexane
