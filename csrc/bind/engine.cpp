// Bindings of the engine compiler's memory decisions: allocation types, the working set of a partition, banks, and
// packed weights. Arguments are arrays with one int64 row for each layer, tensor or touch.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "alloc/banks.h"
#include "alloc/types.h"
#include "alloc/working_set.h"
#include "bind/register.h"
#include "core/error.h"
#include "pack/kernel_data.h"

namespace py = pybind11;

namespace hexane {
namespace {

using Array = py::array_t<int64_t, py::array::c_style>;
using ByteArray = py::array_t<uint8_t, py::array::c_style>;

void need_rows(const char* name, const Array& array, py::ssize_t columns) {
  if (array.ndim() != 2 || array.shape(1) != columns) fail("engine", name, ": need rows of ", columns, " numbers");
}

int32_t narrow(const char* name, int64_t value) {
  if (value < -1 || value > std::numeric_limits<int32_t>::max()) fail("engine", name, ": got ", value);
  return static_cast<int32_t>(value);
}

// ---- allocation types ----

struct TypeProblem {
  std::vector<alloc::Place> layers;
  std::vector<alloc::Operand> tensors;
};

TypeProblem to_problem(const Array& layers, const Array& tensors, const Array& reads) {
  need_rows("layers", layers, 4);
  need_rows("tensors", tensors, 12);
  need_rows("reads", reads, 2);
  TypeProblem problem;
  for (py::ssize_t i = 0; i < layers.shape(0); i++) {
    const int64_t* row = layers.data(i, 0);
    problem.layers.push_back(
        {narrow("unit", row[0]), narrow("engine", row[1]), narrow("position", row[2]), narrow("partition", row[3])});
  }
  for (py::ssize_t i = 0; i < tensors.shape(0); i++) {
    const int64_t* row = tensors.data(i, 0);
    problem.tensors.push_back({narrow("producer", row[0]),
                               row[1] != 0,
                               row[2] != 0,
                               narrow("rewrites", row[3]),
                               {row[4], row[5], row[6]},
                               {row[7], row[8], row[9]},
                               row[10],
                               row[11],
                               {}});
  }
  for (py::ssize_t i = 0; i < reads.shape(0); i++) {
    const int64_t tensor = reads.at(i, 0);
    if (tensor < 0 || tensor >= tensors.shape(0)) fail("engine", "reads: got tensor ", tensor);
    problem.tensors[tensor].readers.push_back(narrow("reader", reads.at(i, 1)));
  }
  return problem;
}

template <typename Enum>
Array to_numbers(const std::vector<Enum>& values) {
  Array array(static_cast<py::ssize_t>(values.size()));
  for (size_t i = 0; i < values.size(); i++)
    array.mutable_at(static_cast<py::ssize_t>(i)) = static_cast<int64_t>(values[i]);
  return array;
}

py::tuple choose_types(const Array& layers, const Array& tensors, const Array& reads, bool chaining) {
  const TypeProblem problem = to_problem(layers, tensors, reads);
  const alloc::Allocation result = alloc::choose_types(problem.layers, problem.tensors, chaining);
  return py::make_tuple(to_numbers(result.types), to_numbers(result.breaks));
}

void check_types(const Array& layers, const Array& tensors, const Array& reads, const Array& types, bool chaining) {
  const TypeProblem problem = to_problem(layers, tensors, reads);
  std::vector<alloc::Type> values;
  for (py::ssize_t i = 0; i < types.size(); i++) {
    if (types.data()[i] < 0 || types.data()[i] > 8) fail("types_check", "got type ", types.data()[i], ", need 0..8");
    values.push_back(static_cast<alloc::Type>(types.data()[i]));
  }
  alloc::check_types(problem.layers, problem.tensors, values, chaining);
}

// ---- the working set of a partition ----

alloc::WorkingSet to_set(const Array& tensors, const Array& touches, int64_t capacity, int64_t alignment) {
  need_rows("tensors", tensors, 5);
  need_rows("touches", touches, 2);
  alloc::WorkingSet set{{}, capacity, alignment};
  for (py::ssize_t i = 0; i < tensors.shape(0); i++) {
    const int64_t* row = tensors.data(i, 0);
    set.tensors.push_back({row[0], row[1], row[2] != 0, row[3] != 0, row[4] != 0, {}});
  }
  for (py::ssize_t i = 0; i < touches.shape(0); i++) {
    const int64_t tensor = touches.at(i, 0);
    if (tensor < 0 || tensor >= tensors.shape(0)) fail("engine", "touches: got tensor ", tensor);
    set.tensors[tensor].touches.push_back(touches.at(i, 1));
  }
  return set;
}

py::tuple place(const Array& tensors, const Array& touches, int64_t capacity, int64_t alignment) {
  const alloc::WorkingSet set = to_set(tensors, touches, capacity, alignment);
  alloc::Placement placement;
  {
    const py::gil_scoped_release release;
    placement = alloc::place(set);
  }
  return py::make_tuple(placement.spilled, placement.offsets, placement.height, placement.traffic);
}

void check_place(const Array& tensors, const Array& touches, int64_t capacity, int64_t alignment,
                 const std::vector<bool>& spilled, const std::vector<std::vector<int64_t>>& offsets, int64_t height,
                 int64_t traffic) {
  alloc::check(to_set(tensors, touches, capacity, alignment), {spilled, offsets, height, traffic});
}

// ---- packed weights ----

using KernelRow = std::array<int64_t, 7>;   // Outputs, inputs, depth, height, width, groups, bits.
using EnginesRow = std::array<int64_t, 3>;  // Number of engines, output channels, alignment.

pack::Kernel to_kernel(const KernelRow& row) { return {row[0], row[1], row[2], row[3], row[4], row[5], row[6]}; }
pack::Engines to_engines(const EnginesRow& row) { return {row[0], row[1], row[2]}; }

std::span<const uint8_t> to_span(const ByteArray& bytes) { return {bytes.data(), static_cast<size_t>(bytes.size())}; }

ByteArray to_bytes(const std::vector<uint8_t>& bytes) {
  return ByteArray(static_cast<py::ssize_t>(bytes.size()), bytes.data());
}

}  // namespace

void register_engine(py::module_& m) {
  m.def("allocation_types", &choose_types, py::arg("layers"), py::arg("tensors"), py::arg("reads"),
        py::arg("chaining"));
  m.def("check_allocation_types", &check_types, py::arg("layers"), py::arg("tensors"), py::arg("reads"),
        py::arg("types"), py::arg("chaining"));
  m.def("working_set", &place, py::arg("tensors"), py::arg("touches"), py::arg("capacity"), py::arg("alignment"));
  m.def("check_working_set", &check_place, py::arg("tensors"), py::arg("touches"), py::arg("capacity"),
        py::arg("alignment"), py::arg("spilled"), py::arg("offsets"), py::arg("height"), py::arg("traffic"));
  m.def(
      "bank_conflicts",
      [](int64_t banks, int64_t bank_bytes, int64_t rows, int64_t stride) {
        return alloc::conflict_depth({banks, bank_bytes}, rows, stride);
      },
      py::arg("banks"), py::arg("bank_bytes"), py::arg("rows"), py::arg("stride"));
  m.def(
      "bank_stride",
      [](int64_t banks, int64_t bank_bytes, int64_t rows, int64_t row_bytes, int64_t most) {
        return alloc::choose_stride({banks, bank_bytes}, rows, row_bytes, most);
      },
      py::arg("banks"), py::arg("bank_bytes"), py::arg("rows"), py::arg("row_bytes"), py::arg("most"));
  m.def(
      "main_memory_pitch",
      [](int64_t row_bytes, int64_t rows, int64_t planes, int64_t row_alignment, int64_t page) {
        const alloc::Pitch pitch = alloc::main_memory_pitch(row_bytes, rows, planes, row_alignment, page);
        return py::make_tuple(pitch.row, pitch.plane, pitch.bytes);
      },
      py::arg("row_bytes"), py::arg("rows"), py::arg("planes"), py::arg("row_alignment"), py::arg("page"));
  m.def(
      "concat_rows",
      [](const std::vector<int64_t>& row_bytes, int64_t granule) {
        std::vector<std::pair<int64_t, bool>> pieces;
        for (const alloc::Piece& piece : alloc::concat_rows(row_bytes, granule))
          pieces.emplace_back(piece.offset, piece.direct);
        return pieces;
      },
      py::arg("row_bytes"), py::arg("granule"));
  m.def(
      "output_group",
      [](const KernelRow& kernel, int64_t kernel_memory, int64_t most) {
        return pack::output_group_measured(to_kernel(kernel), kernel_memory, most);
      },
      py::arg("kernel"), py::arg("kernel_memory"), py::arg("most"));
  m.def(
      "output_group_decoded",
      [](const KernelRow& kernel, int64_t accumulators, int64_t bytes) {
        return pack::output_group_decoded(to_kernel(kernel), accumulators, bytes);
      },
      py::arg("kernel"), py::arg("accumulators"), py::arg("bytes"));
  m.def(
      "packed_shape",
      [](const KernelRow& kernel, const EnginesRow& engines) {
        const pack::Shape shape = pack::packed_shape(to_kernel(kernel), to_engines(engines));
        return py::make_tuple(shape.num_groups, shape.active, shape.passes, shape.stride);
      },
      py::arg("kernel"), py::arg("engines"));
  m.def(
      "pack_kernel",
      [](const KernelRow& kernel, const EnginesRow& engines, const std::string& layout, const ByteArray& weights) {
        return to_bytes(pack::pack(to_kernel(kernel), to_engines(engines), layout, to_span(weights)));
      },
      py::arg("kernel"), py::arg("engines"), py::arg("layout"), py::arg("weights"));
  m.def(
      "unpack_kernel",
      [](const KernelRow& kernel, const EnginesRow& engines, const std::string& layout, const ByteArray& packed) {
        return to_bytes(pack::unpack(to_kernel(kernel), to_engines(engines), layout, to_span(packed)));
      },
      py::arg("kernel"), py::arg("engines"), py::arg("layout"), py::arg("packed"));
}

}  // namespace hexane
