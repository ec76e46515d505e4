// The bound call: a raw CPython object whose vectorcall runs a program on buffers that were checked when they were
// bound. A bound call uses no pybind11 and allocates nothing, and releases the GIL only for a long run.
#include <Python.h>
#include <structmember.h>

#include <algorithm>
#include <span>
#include <vector>

#include "bind/program.h"
#include "bind/register.h"

namespace py = pybind11;

namespace hexane {
namespace {

// The state of a bound array when it was checked. NumPy can exchange an array's memory and type in place, so every call
// checks that both are unchanged.
struct Buffer {
  const Port* port;
  bool written;
  py::array array;
  py::dtype dtype;   // Held, so that no other dtype gets its address.
  py::object guard;  // A weak reference to the array: with it NumPy refuses a resize, even with refcheck=False.
  const std::byte* begin;
  const std::byte* end;
  const py::ssize_t* shape;  // the port's
  int rank;
  int flags;  // NumPy flags that the port needs
};

struct Buffers {
  run::Context::Ports ports;
  std::vector<Buffer> items;
};

struct Bound {
  PyObject_HEAD vectorcallfunc vectorcall;
  run::Context* context;
  Buffers* buffers;
  PyObject* owner;   // The Python object of the program.
  PyObject* inputs;  // Read-only mappings of arrays by port name.
  PyObject* outputs;
  bool is_long;
};

bool is_unchanged(const Buffer& buffer) {
  const auto* now = py::detail::array_proxy(buffer.array.ptr());
  if (now->data != reinterpret_cast<const char*>(buffer.begin) || now->descr != buffer.dtype.ptr() ||
      (now->flags & buffer.flags) != buffer.flags || now->nd != buffer.rank)
    return false;
  for (int i = 0; i < buffer.rank; ++i)
    if (now->dimensions[i] != buffer.shape[i]) return false;
  return true;
}

void set_error(const std::exception& error) {
  const py::object type = py::module_::import("hexane.errors").attr("Error");
  py::set_error(type, text(error.what()));
}

PyObject* call(PyObject* object, PyObject* const*, size_t nargsf, PyObject* names) {
  if (PyVectorcall_NARGS(nargsf) || (names && PyTuple_GET_SIZE(names))) {
    PyErr_SetString(PyExc_TypeError, "a bound call takes no arguments: its buffers are given to bind()");
    return nullptr;
  }
  auto* self = reinterpret_cast<Bound*>(object);
  try {
    for (const Buffer& buffer : self->buffers->items)
      if (!is_unchanged(buffer)) [[unlikely]]
        fail<InputError>(buffer.port->where,
                         "got an array that was changed after bind() (its memory, type, shape, strides or ",
                         "flags), need it as it was");
    const run::Context::Ports& ports = self->buffers->ports;
    if (self->is_long || !self->context->try_run(ports)) {
      const py::gil_scoped_release release;
      self->context->run(ports);
    }
  } catch (const Error&) {
    translate_error(std::current_exception());
    return nullptr;
  } catch (const std::exception& error) {
    set_error(error);
    return nullptr;
  }
  Py_RETURN_NONE;
}

void deallocate(PyObject* object) {
  auto* self = reinterpret_cast<Bound*>(object);
  std::unique_ptr<Buffers>(self->buffers).reset();
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

PyType_Spec spec = {
    "hexane._core.Bound", sizeof(Bound), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    slots};

// The Python type of bound calls: register_bound() creates it, and it lives as long as the module.
PyTypeObject* bound_type = nullptr;

void check_overlaps(std::span<const Buffer> buffers) {
  std::vector<const Buffer*> in_order;
  for (const Buffer& buffer : buffers)
    if (buffer.begin != buffer.end) in_order.push_back(&buffer);
  std::sort(in_order.begin(), in_order.end(), [](const Buffer* a, const Buffer* b) { return a->begin < b->begin; });
  const Buffer* last = nullptr;     // The buffer with the highest end so far.
  const Buffer* written = nullptr;  // The output with the highest end so far.
  for (const Buffer* each : in_order) {
    const Buffer& buffer = *each;
    const Buffer* before = buffer.written ? last : written;
    if (before && before->end > buffer.begin)
      fail<InputError>(buffer.port->where, "its buffer overlaps that of ", before->port->where,
                       ", need memory of its own");
    if (!last || buffer.end > last->end) last = &buffer;
    if (buffer.written && (!written || buffer.end > written->end)) written = &buffer;
  }
}

py::array bound_array(const Port& port, py::handle buffer, bool written) {
  py::array array = as_array(port.where, buffer);
  port.check(array);
  if (!(array.flags() & py::array::c_style))
    fail<InputError>(port.where, "strides: got ", py::str(array.attr("strides")).cast<std::string>(),
                     ", need C-contiguous");
  if (!port.is_dense(array))
    fail<InputError>(port.where, "address: got ", array.data(), ", need it aligned to ", array.itemsize(), " bytes");
  if (written && !array.writeable()) fail<InputError>(port.where, "got a read-only buffer, need a writable one");
  return array;
}

}  // namespace

py::object make_bound(py::object self, ProgramObject& program, const py::dict& buffers) {
  auto held = std::make_unique<Buffers>();
  py::dict inputs, outputs;
  size_t given = 0;
  for (const bool written : {false, true})
    for (const Port& port : written ? program.outputs : program.inputs) {
      // If an input and an output share a name, the name means the input.
      const bool named = !written || !inputs.contains(port.name);
      const auto buffer =
          py::reinterpret_borrow<py::object>(named ? PyDict_GetItemWithError(buffers.ptr(), port.name.ptr()) : nullptr);
      given += static_cast<bool>(buffer);
      if (!buffer && port.surface.surface) {  // the port's own surface, whose memory never moves
        held->ports.addresses.push_back(nullptr);
        (written ? outputs : inputs)[port.name] = port.surface.view();
        continue;
      }
      if (!buffer && !written) fail<InputError>(port.where, "got nothing, need a buffer");
      const py::array array = buffer ? bound_array(port, buffer, written) : port.allocate();
      auto* data = static_cast<std::byte*>(const_cast<void*>(array.data()));
      held->ports.addresses.push_back(data);
      const int flags =
          py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_ | (written ? py::detail::npy_api::NPY_ARRAY_WRITEABLE_ : 0);
      held->items.push_back({&port, written, array, array.dtype(), py::weakref(py::handle(array)), data,
                             data + array.nbytes(), port.shape.data(), static_cast<int>(port.shape.size()), flags});
      (written ? outputs : inputs)[port.name] = array;
    }
  if (given != buffers.size())
    for (const auto& item : buffers)
      if (!inputs.contains(item.first) && !outputs.contains(item.first))
        fail<InputError>("program", "bind: got the name ", py::repr(item.first).cast<std::string>(),
                         ", which no port has");
  check_overlaps(held->items);
  held->ports.id = program.context->new_id();
  const auto read_only = [](const py::dict& arrays) {
    auto mapping = py::reinterpret_steal<py::object>(PyDictProxy_New(arrays.ptr()));
    if (!mapping) throw py::error_already_set();
    return mapping;
  };
  py::object bound_inputs = read_only(inputs), bound_outputs = read_only(outputs);

  auto* bound = PyObject_New(Bound, bound_type);
  if (!bound) throw py::error_already_set();
  bound->vectorcall = call;
  bound->context = program.context.get();
  bound->buffers = held.release();
  bound->owner = self.release().ptr();
  bound->inputs = bound_inputs.release().ptr();
  bound->outputs = bound_outputs.release().ptr();
  bound->is_long = program.is_long;
  return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(bound));
}

void register_bound(py::module_& m) {
  bound_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (!bound_type) throw py::error_already_set();
  m.add_object("Bound", reinterpret_cast<PyObject*>(bound_type));
}

}  // namespace hexane
