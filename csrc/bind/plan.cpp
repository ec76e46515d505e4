// Plan files for Python: the row dtypes, writing, reading.
#include <pybind11/stl.h>

#include <algorithm>
#include <vector>

#include "bind/plan_sections.h"
#include "bind/register.h"
#include "core/file.h"
#include "core/limits.h"
#include "core/lz4.h"
#include "plan/writer.h"

namespace py = pybind11;

namespace hexane {
namespace {

// Returns null for sections of bytes.
py::object row_dtype(plan::Section section) {
  switch (section) {
    case plan::kSpaces:
      return py::dtype::of<PlanSpace>();
    case plan::kTensors:
      return py::dtype::of<PlanTensor>();
    case plan::kOperands:
      return py::dtype::of<uint32_t>();
    case plan::kNumerics:
      return py::dtype::of<PlanNumerics>();
    case plan::kSteps:
      return py::dtype::of<PlanStep>();
    case plan::kLoops:
      return py::dtype::of<PlanLoop>();
    case plan::kMoves:
      return py::dtype::of<int64_t>();
    case plan::kInputs:
    case plan::kOutputs:
      return py::dtype::of<PlanPort>();
    case plan::kBlocks:
      return py::dtype::of<PlanBlock>();
    default:
      return {};
  }
}

py::dict plan_dtypes() {
  py::dict result;
  for (int i = 0; i < plan::kSections; ++i)
    if (const py::object dtype = row_dtype(static_cast<plan::Section>(i)))
      result[text(plan::kSectionInfo[i].name)] = dtype;
  return result;
}

py::bytes plan_write(const py::dict& sections) {
  const HeldSections held(sections);
  const plan::PlanFile file(held.sections());
  auto result =
      py::reinterpret_steal<py::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(file.size())));
  if (!result) throw py::error_already_set();
  char* to = PyBytes_AS_STRING(result.ptr());
  for (const Bytes piece : file.pieces())
    to = std::copy_n(reinterpret_cast<const char*>(piece.data()), piece.size(), to);
  return result;
}

void plan_save(const std::string& path, const py::dict& sections) {
  const HeldSections held(sections);
  const py::gil_scoped_release release;
  save_file(path, plan::PlanFile(held.sections()).pieces());
}

py::dict plan_read(py::handle data) {
  const HeldBytes held("plan", data);
  const plan::Container container = plan::read_container(held.bytes());
  const plan::Sections& sections = container.sections;
  plan::read_sections(sections);
  py::dict result;
  for (int i = 0; i < plan::kSections; ++i) {
    const plan::SectionInfo& info = plan::kSectionInfo[i];
    const py::object rows = row_dtype(static_cast<plan::Section>(i));
    py::array array(rows ? py::dtype(py::reinterpret_borrow<py::dtype>(rows)) : py::dtype::of<uint8_t>(),
                    {static_cast<py::ssize_t>(sections[i].size() / info.row_bytes)}, {}, sections[i].data(),
                    i == plan::kTensors ? py::object() : held.owner());  // without an owner, py::array copies the bytes
    array.attr("flags").attr("writeable") = false;
    result[text(info.name)] = array;
  }
  return result;
}

py::bytes unpack(py::handle data, uint64_t size) {
  const HeldBytes held("lz4", data);
  if (size > kMaxBytes) fail("lz4", "size: got ", size, " bytes, need at most ", kMaxBytes);
  auto result = py::reinterpret_steal<py::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
  if (!result) throw py::error_already_set();
  lz4_unpack("lz4", held.bytes(), {reinterpret_cast<std::byte*>(PyBytes_AS_STRING(result.ptr())), size});
  return result;
}

}  // namespace

HeldSections::HeldSections(const py::dict& sections) {
  static constexpr std::byte kEmptyString[1] = {};
  sections_[plan::kStrings] = kEmptyString;
  for (const auto& [key, value] : sections) {
    const auto name = py::str(key).cast<std::string>();
    int i = 0;
    while (i < plan::kSections && plan::kSectionInfo[i].name != name) ++i;
    if (i == plan::kSections) fail("plan", "got a section '", name, "', need one of those of plan.h");
    if ((i == plan::kState || i == plan::kWeights) && py::isinstance<py::list>(value)) {
      auto& held = i == plan::kState ? held_state_ : held_weights_;
      auto& pieces = i == plan::kState ? sections_.state : sections_.weights;
      for (const auto& [offset, bytes] : value.cast<std::vector<std::pair<uint64_t, py::object>>>()) {
        held.emplace_back("plan: " + name, bytes);
        pieces.push_back({offset, held.back().bytes()});
      }
      continue;
    }
    held_[i].emplace("plan: " + name, value);
    sections_[i] = held_[i]->bytes();
  }
}

void HeldSections::let_go_weights() {
  held_[plan::kWeights].reset();
  held_weights_.clear();
}

void register_plan(py::module_& m) {
  PYBIND11_NUMPY_DTYPE(PlanSpace, name, kind, bytes, limit, alignment);
  PYBIND11_NUMPY_DTYPE(PlanTensor, name, dtype, layout, space, offset, rank, ring, shape, strides);
  PYBIND11_NUMPY_DTYPE(PlanNumerics, name, family, offset, bytes);
  PYBIND11_NUMPY_DTYPE(PlanStep, kernel, numerics, device, source, operands, num_inputs, num_outputs, attrs_bytes,
                       attrs, cut_axis, begin, end);
  PYBIND11_NUMPY_DTYPE(PlanLoop, first_step, num_steps, trips, moves);
  PYBIND11_NUMPY_DTYPE(PlanBlock, offset, bytes, packed, packed_bytes, arena_offset, arena, codec, first_step,
                       num_steps);
  PYBIND11_NUMPY_DTYPE(PlanPort, name, emitted_name, tensor, length, axis, streamed);
  m.def("plan_dtypes", &plan_dtypes);
  m.def("plan_write", &plan_write, py::arg("sections"));
  m.def("plan_save", &plan_save, py::arg("path"), py::arg("sections"));
  m.def("plan_read", &plan_read, py::arg("data"));
  m.def("lz4_unpack", &unpack, py::arg("data"), py::arg("size"));
}

}  // namespace hexane
