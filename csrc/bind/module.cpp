// The extension module hexane._core: the list of what is bound, and the one place where C++ errors become Python ones.
#include <exception>

#include "bind/arrays.h"
#include "bind/register.h"
#include "core/error.h"
#include "core/limits.h"

namespace py = pybind11;

namespace {

// The class is looked up when an error is thrown, since importing hexane.errors while the module loads is a cycle.
void translate_error(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const hexane::Error& error) {
    py::set_error(py::module_::import("hexane.errors").attr("Error"), hexane::text(error.what()));
  }
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "The C++ core of Hexane.";
  py::register_local_exception_translator(translate_error);
  m.attr("MAX_RANK") = hexane::kMaxRank;
  m.attr("MAX_BYTES") = hexane::kMaxBytes;
  m.attr("MAX_LIST") = hexane::kMaxList;
  m.attr("MAX_SLOTS") = hexane::kMaxSlots;
  m.attr("MAX_SLOT_NUMBERS") = hexane::kMaxSlotNumbers;
  hexane::register_alloc(m);
  hexane::register_convert(m);
  hexane::register_engine(m);
  hexane::register_hash(m);
  hexane::register_kernels(m);
  hexane::register_plan(m);
  hexane::register_program(m);
  hexane::register_sched(m);
}
