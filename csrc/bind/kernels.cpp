// The kernel tables for Python, and one kernel run by itself on arrays: how the kernels are tested.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "bind/register.h"
#include "cpu/kernel.h"

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

using MaybeArray = std::optional<py::array>;

std::vector<cpu::Tensor> tensors(std::vector<MaybeArray>& arrays, const std::vector<size_t>& constants) {
  std::vector<cpu::Tensor> result;
  for (size_t i = 0; i < arrays.size(); ++i) {
    if (!arrays[i]) {
      result.push_back({nullptr, DType::kBool, -1, false, 0, nullptr, nullptr});
      continue;
    }
    py::array& a = *arrays[i];
    const bool constant = std::find(constants.begin(), constants.end(), i) != constants.end();
    result.push_back({static_cast<std::byte*>(const_cast<void*>(a.data())), dtype_from_name(dtype_name(a.dtype())),
                      static_cast<int>(a.ndim()), constant, 0, reinterpret_cast<const int64_t*>(a.shape()),
                      reinterpret_cast<const int64_t*>(a.strides())});
  }
  return result;
}

// The bytes where a struct of 8-byte fields may lie.
std::vector<int64_t> whole_words(const std::string& bytes) {
  std::vector<int64_t> words((bytes.size() + 7) / 8);
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(words.data()));
  return words;
}

// Runs the kernel in `pieces` ranges of its cut `which`, last range first, so that nothing can hang on their order.
void run_pieces(const cpu::Kernel& kernel, const cpu::Call& call, int64_t pieces, int which, std::byte* scratch,
                std::byte* shared) {
  if (kernel.begin) kernel.begin(call, shared);
  cpu::Cuts cuts;
  if (kernel.cuts) kernel.cuts(call, cuts);
  if (which >= cuts.count) {
    const bool whole = cuts.count > 0;
    kernel.run(call, whole ? cuts.items[0].axis : -1, {0, whole ? cuts.items[0].extent : 0}, scratch, shared);
    return;
  }
  const cpu::Cut cut = cuts.items[which];
  const int64_t grains = (cut.extent + cut.grain - 1) / cut.grain;
  for (int64_t piece = pieces - 1; piece >= 0; --piece) {
    const int64_t begin = std::min(grains * piece / pieces * cut.grain, cut.extent);
    const int64_t end = std::min(grains * (piece + 1) / pieces * cut.grain, cut.extent);
    if (begin < end) kernel.run(call, cut.axis, {begin, end}, scratch, shared);
  }
}

// Prepares the kernel once, runs it `repeats` times, and gives the seconds of each.
std::vector<double> run_kernel(const std::string& name, std::vector<MaybeArray> inputs, std::vector<MaybeArray> outputs,
                               const std::string& attrs, const std::string& strings,
                               const std::vector<size_t>& constants, int64_t pieces, int which,
                               const std::string& family, const std::string& numerics, int64_t repeats) {
  const std::vector<cpu::Tensor> in = tensors(inputs, constants), out = tensors(outputs, {});
  const std::vector<int64_t> aligned = whole_words(attrs), parameters = whole_words(numerics);
  cpu::Call call{in, out, aligned.data(), strings.c_str(), nullptr, numerics.empty() ? nullptr : parameters.data()};
  const cpu::Kernel& kernel = cpu::find_kernel(name, family, call);
  if (static_cast<int64_t>(attrs.size()) != kernel.attrs_bytes)
    fail(name, "attributes: got ", attrs.size(), " bytes, need ", kernel.attrs_bytes);
  cpu::Prepared prepared;
  if (kernel.prepare) prepared = kernel.prepare(call);
  call.prepared = prepared.get();

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> shared(kernel.shared_scratch ? kernel.shared_scratch(call) / 64 + 1 : 0);
  std::vector<Line> scratch(kernel.scratch ? kernel.scratch(call) / 64 + 1 : 0);
  auto* shared_bytes = reinterpret_cast<std::byte*>(shared.data());
  auto* scratch_bytes = reinterpret_cast<std::byte*>(scratch.data());
  std::vector<double> seconds;
  for (int64_t i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run_pieces(kernel, call, pieces, which, scratch_bytes, shared_bytes);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return seconds;
}

bool has_kernel(const std::string& name, const std::string& family,
                const std::vector<std::optional<std::string>>& inputs,
                const std::vector<std::optional<std::string>>& outputs) {
  const auto operands = [](const std::vector<std::optional<std::string>>& dtypes) {
    std::vector<cpu::Tensor> result;
    for (const auto& dtype : dtypes)
      result.push_back(
          {nullptr, dtype ? dtype_from_name(*dtype) : DType::kBool, dtype ? 0 : -1, false, 0, nullptr, nullptr});
    return result;
  };
  return cpu::has_kernel(name, family, operands(inputs), operands(outputs));
}

}  // namespace

void register_kernels(py::module_& m) {
  m.def("kernels", [] {
    py::list rows;
    for (const auto table : cpu::kernel_tables())
      for (const cpu::Kernel& k : table)
        rows.append(py::dict(py::arg("name") = k.name, py::arg("dtypes") = k.dtypes, py::arg("family") = k.family,
                             py::arg("attrs") = k.attrs, py::arg("attrs_bytes") = k.attrs_bytes,
                             py::arg("accepts") = k.accepts));
    return rows;
  });
  m.def("has_kernel", &has_kernel, py::arg("name"), py::arg("family"), py::arg("inputs"), py::arg("outputs"));
  m.def("dtypes", [] {
    py::dict sizes;
    for (const DTypeInfo& dtype : kDTypes) sizes[py::str(std::string(dtype.name))] = dtype.bits;
    return sizes;
  });
  m.def("run_kernel", &run_kernel, py::arg("name"), py::arg("inputs"), py::arg("outputs"),
        py::arg("attrs") = py::bytes(), py::arg("strings") = py::bytes("\0", 1),
        py::arg("constants") = std::vector<size_t>{}, py::arg("pieces") = 1, py::arg("which") = 99,
        py::arg("family") = "ieee", py::arg("numerics") = py::bytes(), py::arg("repeats") = 1);
}

}  // namespace hexane
