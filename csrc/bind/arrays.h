// Between numpy's arrays and the core's tensors: dtypes by name, buffers without copies.
#pragma once

#include <pybind11/numpy.h>

#include <optional>
#include <string>

#include "core/bytes.h"
#include "core/dtype.h"

namespace hexane {

pybind11::dtype numpy_dtype(DType dtype);
std::string numpy_name(DType dtype);

// Returns an array over the memory of an ndarray, a buffer or a DLPack tensor. Throws Error (`where`) for any other
// object.
pybind11::array as_array(const std::string& where, pybind11::handle object);

// The bytes of a contiguous buffer or array, held as long as this object lives.
class HeldBytes {
 public:
  HeldBytes(const std::string& where, pybind11::handle object);
  HeldBytes(HeldBytes&&) = default;
  Bytes bytes() const { return bytes_; }
  pybind11::object owner() const { return owner_; }

 private:
  pybind11::object owner_;
  Bytes bytes_;
};

pybind11::str text(std::string_view utf8);

}  // namespace hexane
