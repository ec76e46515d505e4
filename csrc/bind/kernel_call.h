// A kernel and a call of it as Python describes them.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <list>
#include <map>
#include <string>
#include <vector>

#include "cpu/kernel.h"

namespace hexane {

// Name and family of a kernel; tests mostly use the family "ieee".
struct KernelName {
  std::string name, family;
};

// An operand is an array or None. An operand whose elements are not read may be (dtype, shape) or (dtype, shape,
// strides), with strides in bytes. (dtype, shape, strides, ring, bytes) describes an operand as plans do: `bytes` is an
// array from the first element on if the operand is constant, else None. `rings`: number of an operand (inputs, then
// outputs) -> rows of its axis 1, if its array holds only some of these rows. `asks`: the call is never run, so no
// weights are packed.
class KernelCall {
 public:
  KernelCall(const KernelName& kernel, const std::vector<pybind11::object>& inputs,
             const std::vector<pybind11::object>& outputs, const std::string& attrs, const std::string& strings,
             const std::string& numerics = {}, const std::vector<size_t>& constants = {},
             const std::map<size_t, int64_t>& rings = {}, bool asks = false);
  KernelCall(const KernelCall&) = delete;
  KernelCall& operator=(const KernelCall&) = delete;

  const cpu::Kernel& kernel() const { return *kernel_; }
  const cpu::Call& call() const { return call_; }

 private:
  cpu::Tensor operand(const pybind11::object& object, int64_t rows);

  std::list<pybind11::object> arrays_;       // Arrays that the call keeps alive.
  std::list<std::vector<int64_t>> extents_;  // Shapes and strides of operands without an array.
  std::vector<cpu::Tensor> inputs_, outputs_;
  std::vector<int64_t> attrs_, numerics_;  // 8-byte fields
  std::string strings_;
  const cpu::Kernel* kernel_;
  cpu::Prepared prepared_;
  cpu::Call call_;
};

}  // namespace hexane
