// Builds a call of a kernel from arrays and descriptions.
#include "bind/kernel_call.h"

#include "core/numerics.h"

#include <algorithm>

namespace py = pybind11;

namespace hexane {
namespace {

std::string dtype_name(const py::dtype& dtype) {
  const auto name = dtype.attr("name").cast<std::string>();
  if (name == "float16") return "fp16";
  if (name == "float32") return "fp32";
  if (name == "float64") return "fp64";
  if (name == "bfloat16") return "bf16";
  return name;
}

// Returns the bytes of an attribute struct, aligned for 8-byte fields.
std::vector<int64_t> whole_words(const std::string& bytes) {
  std::vector<int64_t> words((bytes.size() + 7) / 8);
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(words.data()));
  return words;
}

std::vector<int64_t> dense_strides(const std::vector<int64_t>& shape, int64_t item_bytes) {
  std::vector<int64_t> strides(shape.size());
  for (size_t i = shape.size(); i-- > 0; item_bytes *= shape[i]) strides[i] = item_bytes;
  return strides;
}

}  // namespace

cpu::Tensor KernelCall::operand(const py::object& object, int64_t rows) {
  cpu::Tensor tensor{nullptr, DType::kBool, -1, false, 0, nullptr, nullptr};
  if (object.is_none()) return tensor;
  std::vector<int64_t> shape, strides;
  if (py::isinstance<py::tuple>(object)) {
    const auto parts = object.cast<py::tuple>();
    if (parts.size() != 2 && parts.size() != 3 && parts.size() != 5)
      fail("kernel", "operand: got ", parts.size(), " items, need dtype, shape and strides, or ring and bytes too");
    tensor.dtype = dtype_from_name(parts[0].cast<std::string>());
    shape = parts[1].cast<std::vector<int64_t>>();
    strides =
        parts.size() > 2 ? parts[2].cast<std::vector<int64_t>>() : dense_strides(shape, info(tensor.dtype).bits / 8);
    if (strides.size() != shape.size())
      fail("kernel", "operand: got ", strides.size(), " strides, need ", shape.size());
    if (parts.size() == 5) {
      tensor.ring = parts[3].cast<int64_t>();
      if (!parts[4].is_none()) {
        const auto bytes = parts[4].cast<py::array>();
        tensor.data = static_cast<std::byte*>(const_cast<void*>(bytes.data()));
        tensor.constant = true;
        arrays_.push_back(bytes);
      }
    }
  } else {
    const auto array = object.cast<py::array>();
    tensor.dtype = dtype_from_name(dtype_name(array.dtype()));
    tensor.data = static_cast<std::byte*>(const_cast<void*>(array.data()));
    shape.assign(array.shape(), array.shape() + array.ndim());
    strides.assign(array.strides(), array.strides() + array.ndim());
    arrays_.push_back(array);
  }
  if (shape.size() > 8) fail("kernel", "operand rank: got ", shape.size(), ", need at most 8");
  if (rows > 0) {
    if (shape.size() < 2) fail("kernel", "ring: got an operand of rank ", shape.size(), ", need 2 or more");
    tensor.ring = shape[1];
    shape[1] = rows;
  }
  tensor.rank = static_cast<int>(shape.size());
  tensor.shape = extents_.emplace_back(std::move(shape)).data();
  tensor.strides = extents_.emplace_back(std::move(strides)).data();
  return tensor;
}

KernelCall::KernelCall(const KernelName& kernel, const std::vector<py::object>& inputs,
                       const std::vector<py::object>& outputs, const std::string& attrs, const std::string& strings,
                       const std::string& numerics, const std::vector<size_t>& constants,
                       const std::map<size_t, int64_t>& rings, bool asks)
    : attrs_(whole_words(attrs)), numerics_(whole_words(numerics)), strings_(strings) {
  const auto rows = [&](size_t i) {
    const auto found = rings.find(i);
    return found == rings.end() ? 0 : found->second;
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    inputs_.push_back(operand(inputs[i], rows(i)));
    if (std::find(constants.begin(), constants.end(), i) != constants.end()) inputs_.back().constant = true;
  }
  for (size_t i = 0; i < outputs.size(); ++i) outputs_.push_back(operand(outputs[i], rows(inputs.size() + i)));
  call_ = {inputs_, outputs_, attrs_.data(), strings_.c_str(), nullptr, numerics.empty() ? nullptr : numerics_.data()};
  call_.asks = asks;
  kernel_ = &cpu::find_kernel(kernel.name, kernel.family, call_);
  if (static_cast<int64_t>(attrs.size()) != kernel_->attrs_bytes)
    fail(kernel.name, "attributes: got ", attrs.size(), " bytes, need ", kernel_->attrs_bytes);
  const auto family = std::find_if(kNumericsFamilies.begin(), kNumericsFamilies.end(),
                                   [&](const NumericsFamily& one) { return one.name == kernel.family; });
  if (family != kNumericsFamilies.end() && !numerics.empty() && numerics.size() != family->bytes)
    fail(kernel.name, "numerics: got ", numerics.size(), " bytes, need ", family->bytes);
  if (kernel_->prepare) prepared_ = kernel_->prepare(call_);
  call_.prepared = prepared_.get();
}

}  // namespace hexane
