// The extension module hexane._core: the list of its bindings, and the one place where C++ errors become Python errors.
#include <exception>
#include <stdexcept>

#include "bind/arrays.h"
#include "bind/register.h"
#include "core/error.h"
#include "core/limits.h"
#include "cpu/engine/engine_numerics.h"
#include "device/device.h"

namespace py = pybind11;

// The class is looked up when an error is thrown, since importing hexane.errors while the module loads is a cycle.
void hexane::translate_error(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const hexane::device::DeviceError& error) {
    const py::object type = py::module_::import("hexane.errors").attr("DeviceError");
    const py::object raised =
        type(hexane::text(error.what()), hexane::text(error.stage), error.code, hexane::text(error.hint));
    PyErr_SetObject(type.ptr(), raised.ptr());
  } catch (const hexane::InputError& error) {
    py::set_error(py::module_::import("hexane.errors").attr("InputError"), hexane::text(error.what()));
  } catch (const hexane::Error& error) {
    py::set_error(py::module_::import("hexane.errors").attr("Error"), hexane::text(error.what()));
  }
}

namespace {

constexpr const char* kSubInterpreter = "Hexane works in the main interpreter only, and this is a sub-interpreter";

bool in_sub_interpreter() { return PyInterpreterState_Get() != PyInterpreterState_Main(); }

}  // namespace

PYBIND11_MODULE(_core_of_main, m) {
  // Python 3.13 and newer call PyInit__core in the main interpreter, and run this body in the importing interpreter.
  if (in_sub_interpreter()) throw std::runtime_error(kSubInterpreter);
  m.doc() = "The C++ core of Hexane.";
  py::register_local_exception_translator(hexane::translate_error);
  m.attr("MAX_RANK") = hexane::kMaxRank;
  m.attr("MAX_BYTES") = hexane::kMaxBytes;
  m.attr("MAX_LIST") = hexane::kMaxList;
  m.attr("MAX_KNOTS") = hexane::cpu::kMaxKnots;
  m.attr("MAX_SLOTS") = hexane::kMaxSlots;
  m.attr("MAX_SLOT_NUMBERS") = hexane::kMaxSlotNumbers;
  hexane::register_alloc(m);
  hexane::register_ane(m);
  hexane::register_blob(m);
  hexane::register_convert(m);
  hexane::register_device(m);
  hexane::register_engine(m);
  hexane::register_file(m);
  hexane::register_hash(m);
  hexane::register_kernels(m);
  hexane::register_plan(m);
  hexane::register_program(m);
  hexane::register_quantise(m);
  hexane::register_sched(m);
  hexane::register_surface(m);
}

// Python calls this function. pybind11's own function would wait forever for the lock of the interpreter, if
// Python 3.12 or older called it in a sub-interpreter.
extern "C" PYBIND11_EXPORT PyObject* PyInit__core() {
  if (!in_sub_interpreter()) return PyInit__core_of_main();
  PyErr_SetString(PyExc_ImportError, kSubInterpreter);
  return nullptr;
}
