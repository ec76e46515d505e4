// Each file of bind/ defines one register_x(m), which this file declares; module.cpp calls them all.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>

namespace hexane {

// Sets the Python error for an exception of the core; throws any other exception again.
void translate_error(std::exception_ptr thrown);

void register_alloc(pybind11::module_& m);
void register_ane(pybind11::module_& m);
void register_blob(pybind11::module_& m);
void register_convert(pybind11::module_& m);
void register_device(pybind11::module_& m);
void register_engine(pybind11::module_& m);
void register_file(pybind11::module_& m);
void register_hash(pybind11::module_& m);
void register_kernels(pybind11::module_& m);
void register_plan(pybind11::module_& m);
void register_program(pybind11::module_& m);
void register_quantise(pybind11::module_& m);
void register_sched(pybind11::module_& m);
void register_surface(pybind11::module_& m);

}  // namespace hexane
