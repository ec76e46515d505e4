// The kernel tables for Python, and one kernel run by itself on arrays: how the kernels are tested.
#include <hwy/targets.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/arrays.h"
#include "bind/kernel_call.h"
#include "bind/register.h"
#include "core/numerics.h"
#include "cpu/kernel.h"
#include "cpu/matmul/bf16.h"
#include "cpu/region.h"
#include "cpu/rings.h"
#include "cpu/sharing.h"

namespace py = pybind11;

namespace hexane {
namespace {

struct alignas(64) Line {
  std::byte bytes[64];
};

// The scratch memory of one run.
struct Scratch {
  explicit Scratch(const KernelCall& c)
      : own(c.kernel().scratch ? c.kernel().scratch(c.call()) / 64 + 1 : 0),
        shared(c.kernel().shared_scratch ? c.kernel().shared_scratch(c.call()) / 64 + 1 : 0) {}
  void begin(const KernelCall& c) {
    if (c.kernel().begin) c.kernel().begin(c.call(), shared_bytes());
  }
  std::byte* own_bytes() { return reinterpret_cast<std::byte*>(own.data()); }
  std::byte* shared_bytes() { return reinterpret_cast<std::byte*>(shared.data()); }

  std::vector<Line> own, shared;
};

cpu::Cuts cuts_of(const KernelCall& c) {
  cpu::Cuts cuts;
  if (c.kernel().cuts) c.kernel().cuts(c.call(), cuts);
  return cuts;
}

// Runs the kernel in `pieces` ranges along its cut number `which`, last range first, so that no result can depend on
// the order of ranges.
void run_pieces(const KernelCall& c, int64_t pieces, int which, Scratch& scratch) {
  const cpu::Cuts cuts = cuts_of(c);
  scratch.begin(c);
  const auto run = [&](int axis, cpu::Range range) {
    c.kernel().run(c.call(), axis, range, scratch.own_bytes(), scratch.shared_bytes());
  };
  if (which >= cuts.count) return cuts.count > 0 ? run(cuts.items[0].axis, {0, cuts.items[0].extent}) : run(-1, {0, 0});
  const cpu::Cut cut = cuts.items[which];
  const int64_t grains = (cut.extent + cut.grain - 1) / cut.grain;
  for (int64_t piece = pieces - 1; piece >= 0; --piece) {
    const int64_t begin = std::min(grains * piece / pieces * cut.grain, cut.extent);
    const int64_t end = std::min(grains * (piece + 1) / pieces * cut.grain, cut.extent);
    if (begin < end) run(cut.axis, {begin, end});
  }
}

// Prepares the kernel once, runs it `repeats` times, and returns the seconds of each run.
std::vector<double> run_kernel(const std::string& name, const std::vector<py::object>& inputs,
                               const std::vector<py::object>& outputs, const std::string& attrs,
                               const std::string& strings, const std::vector<size_t>& constants, int64_t pieces,
                               int which, const std::string& family, const std::string& numerics, int64_t repeats) {
  const KernelCall c({name, family}, inputs, outputs, attrs, strings, numerics, constants);
  Scratch scratch(c);
  std::vector<double> seconds;
  for (int64_t i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run_pieces(c, pieces, which, scratch);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return seconds;
}

// Runs the kernel on a range of an axis along which the output can be cut. If the axis is 1, operands may be rings.
void run_part(const std::string& name, const std::vector<py::object>& inputs, const std::vector<py::object>& outputs,
              const std::string& attrs, const std::string& strings, int axis, cpu::Range range,
              const std::map<size_t, int64_t>& rings, const std::string& family) {
  const KernelCall c({name, family}, inputs, outputs, attrs, strings, {}, {}, rings);
  const cpu::Cuts cuts = cuts_of(c);
  const cpu::Cut* end = cuts.items + cuts.count;
  const cpu::Cut* cut = std::find_if(cuts.items, end, [&](const cpu::Cut& one) { return one.axis == axis; });
  if (cut == end) fail(name, "cut: got axis ", axis, ", need one along which it can be cut");
  if (range.begin < 0 || range.begin >= range.end || range.end > cut->extent || range.begin % cut->grain ||
      (range.end % cut->grain && range.end != cut->extent))
    fail(name, "cut: got [", range.begin, ", ", range.end, "), need multiples of ", cut->grain, " up to ", cut->extent);
  Scratch scratch(c);
  scratch.begin(c);
  if (!cpu::has_rings(c.call()))
    return c.kernel().run(c.call(), axis, range, scratch.own_bytes(), scratch.shared_bytes());
  if (axis != 1) fail(name, "cut: got axis ", axis, ", need 1 for rings");
  cpu::check_rings(c.kernel(), c.call(), range);
  cpu::run_rows(c.kernel(), c.call(), cpu::rings_to_move(c.kernel(), c.call()), range, scratch.own_bytes(),
                scratch.shared_bytes());
}

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

std::vector<std::tuple<int, int64_t, int64_t>> kernel_cuts(const std::string& name, const std::string& family,
                                                           const std::vector<py::object>& inputs,
                                                           const std::vector<py::object>& outputs,
                                                           const std::string& attrs, const std::string& strings,
                                                           const std::string& numerics) {
  const cpu::Cuts cuts = cuts_of(KernelCall({name, family}, inputs, outputs, attrs, strings, numerics));
  std::vector<std::tuple<int, int64_t, int64_t>> found;
  for (int i = 0; i < cuts.count; ++i)
    found.emplace_back(cuts.items[i].axis, cuts.items[i].extent, cuts.items[i].grain);
  return found;
}

Ranges kernel_needs(const std::string& name, const std::string& family, const std::vector<py::object>& inputs,
                    const std::vector<py::object>& outputs, const std::string& attrs, const std::string& strings,
                    size_t input, const Ranges& box, const std::string& numerics) {
  const KernelCall c({name, family}, inputs, outputs, attrs, strings, numerics);
  if (input >= inputs.size()) fail(name, "input: got ", input, ", need less than ", inputs.size());
  const cpu::Tensor& out = c.call().outputs[0];
  if (static_cast<int>(box.size()) != out.rank) fail(name, "box: got ", box.size(), " axes, need ", out.rank);
  cpu::Box wanted{out.rank, {}};
  for (int i = 0; i < out.rank; ++i) {
    const auto [begin, end] = box[static_cast<size_t>(i)];
    if (begin < 0 || begin > end || end > out.shape[i])
      fail(name, "box: got [", begin, ", ", end, ") of axis ", i, ", need a part of [0, ", out.shape[i], ")");
    wanted[i] = {begin, end};
  }
  const cpu::Box found = cpu::needed_box(c.kernel(), c.call(), static_cast<int>(input), wanted);
  Ranges ranges;
  for (int i = 0; i < found.rank; ++i) ranges.emplace_back(found[i].begin, found[i].end);
  return ranges;
}

// For each index of an output axis: the range that it needs of the same axis of the input.
Ranges kernel_needs_along(const std::string& name, const std::string& family, const std::vector<py::object>& inputs,
                          const std::vector<py::object>& outputs, const std::string& attrs, const std::string& strings,
                          size_t input, int axis, const std::string& numerics) {
  const KernelCall c({name, family}, inputs, outputs, attrs, strings, numerics);
  const cpu::Tensor& out = c.call().outputs[0];
  if (input >= inputs.size()) fail(name, "input: got ", input, ", need less than ", inputs.size());
  const int rank = std::min(out.rank, c.call().inputs[input].rank);
  if (axis < 0 || axis >= rank) fail(name, "axis: got ", axis, ", need less than ", rank);
  Ranges found;
  cpu::Box box = cpu::whole(out);
  for (int64_t i = 0; i < out.shape[axis]; ++i) {
    box[axis] = {i, i + 1};
    const cpu::Range needed = cpu::needed_box(c.kernel(), c.call(), static_cast<int>(input), box)[axis];
    found.emplace_back(needed.begin, needed.end);
  }
  return found;
}

// Returns the bytes of scratch that all threads share, the bytes for each thread, and the cost of a run that is divided
// among threads (cpu/sharing.h). cut: the axis and range that one run computes, or None for all; in_loop: whether the
// step runs in a loop.
std::tuple<uint64_t, uint64_t, int64_t> kernel_scratch(const std::string& name, const std::string& family,
                                                       const std::vector<py::object>& inputs,
                                                       const std::vector<py::object>& outputs, const std::string& attrs,
                                                       const std::string& strings, const std::string& numerics,
                                                       const std::optional<std::tuple<int, int64_t, int64_t>>& cut,
                                                       bool in_loop, int threads) {
  const KernelCall c({name, family}, inputs, outputs, attrs, strings, numerics, {}, {}, true);
  std::optional<cpu::Part> part;
  if (cut) part = {std::get<0>(*cut), {std::get<1>(*cut), std::get<2>(*cut)}, in_loop};
  const auto [shared, own, cost] = cpu::step_scratch(c.kernel(), c.call(), part, threads);
  return {shared, own, cost};
}

uint64_t scratch_bytes(const std::vector<std::tuple<uint64_t, uint64_t, int64_t>>& steps, int threads) {
  std::vector<cpu::StepScratch> found;
  for (const auto& [shared, own, cost] : steps) found.push_back({shared, own, cost});
  return cpu::scratch_bytes(found, threads);
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

// The instruction sets of this machine for which there are kernels, the best first: each a name and Highway's target
// bit.
std::vector<std::pair<std::string, int64_t>> instruction_sets() {
  std::vector<std::pair<std::string, int64_t>> found;
  for (int64_t rest = hwy::SupportedTargets() & HWY_TARGETS; rest != 0; rest &= rest - 1)
    found.emplace_back(hwy::TargetName(rest & -rest), rest & -rest);
  return found;
}

void use_instruction_set(const std::string& name) {
  const auto sets = instruction_sets();
  const auto found = std::find_if(sets.begin(), sets.end(), [&](const auto& set) { return set.first == name; });
  if (found == sets.end()) fail("instruction set", "got '", name, "', need one that this machine has");
  hwy::SetSupportedTargetsForTest(found->second);
  hwy::GetChosenTarget().Update(found->second);
}

constexpr cpu::Bf16Form kBf16Forms[] = {cpu::Bf16Form::kPlain, cpu::Bf16Form::kExtended, cpu::Bf16Form::kAmx};

// The forms of bf16 products on this machine; the form in use comes first.
std::vector<std::string> bf16_forms() {
  std::vector<std::string> names = {cpu::bf16_form_name(cpu::bf16_form())};
  for (const auto form : kBf16Forms)
    if (form != cpu::bf16_form() && cpu::bf16_arithmetic(form)) names.emplace_back(cpu::bf16_form_name(form));
  return names;
}

void use_bf16_form(const std::string& name) {
  for (const auto form : kBf16Forms)
    if (cpu::bf16_form_name(form) == name && cpu::use_bf16_form(form)) return;
  fail("bf16 form", "got '", name, "', need one that this machine has");
}

}  // namespace

void register_kernels(py::module_& m) {
  m.def("instruction_sets", [] {
    std::vector<std::string> names;
    for (const auto& [name, bit] : instruction_sets()) names.push_back(name);
    return names;
  });
  m.def("use_instruction_set", &use_instruction_set, py::arg("name"));
  m.def("bf16_forms", &bf16_forms);
  m.def("use_bf16_form", &use_bf16_form, py::arg("name"));
  m.def("kernels", [] {
    py::list rows;
    for (const auto table : cpu::kernel_tables())
      for (const cpu::Kernel& k : table)
        rows.append(py::dict(py::arg("name") = k.name, py::arg("dtypes") = k.dtypes, py::arg("family") = k.family,
                             py::arg("attrs") = k.attrs, py::arg("attrs_bytes") = k.attrs_bytes,
                             py::arg("accepts") = k.accepts, py::arg("reads_ring") = k.reads_ring,
                             py::arg("packs") = k.begin != nullptr));
    return rows;
  });
  m.def("numerics_families", [] {
    py::dict layouts;
    for (const NumericsFamily& family : kNumericsFamilies) layouts[text(family.name)] = text(family.layout);
    return layouts;
  });
  m.def("has_kernel", &has_kernel, py::arg("name"), py::arg("family"), py::arg("inputs"), py::arg("outputs"));
  m.def("kernel_cuts", &kernel_cuts, py::arg("name"), py::arg("family"), py::arg("inputs"), py::arg("outputs"),
        py::arg("attrs"), py::arg("strings"), py::arg("numerics") = py::bytes());
  m.def("kernel_needs", &kernel_needs, py::arg("name"), py::arg("family"), py::arg("inputs"), py::arg("outputs"),
        py::arg("attrs"), py::arg("strings"), py::arg("input"), py::arg("box"), py::arg("numerics") = py::bytes());
  m.def("kernel_needs_along", &kernel_needs_along, py::arg("name"), py::arg("family"), py::arg("inputs"),
        py::arg("outputs"), py::arg("attrs"), py::arg("strings"), py::arg("input"), py::arg("axis"),
        py::arg("numerics") = py::bytes());
  m.def("kernel_scratch", &kernel_scratch, py::arg("name"), py::arg("family"), py::arg("inputs"), py::arg("outputs"),
        py::arg("attrs"), py::arg("strings"), py::arg("numerics"), py::arg("cut"), py::arg("in_loop"),
        py::arg("threads"));
  m.def("scratch_bytes", &scratch_bytes, py::arg("steps"), py::arg("threads"));
  m.def("dtypes", [] {
    py::dict sizes;
    for (const DTypeInfo& dtype : kDTypes) sizes[py::str(std::string(dtype.name))] = dtype.bits;
    return sizes;
  });
  m.def("run_kernel", &run_kernel, py::arg("name"), py::arg("inputs"), py::arg("outputs"),
        py::arg("attrs") = py::bytes(), py::arg("strings") = py::bytes("\0", 1),
        py::arg("constants") = std::vector<size_t>{}, py::arg("pieces") = 1, py::arg("which") = 99,
        py::arg("family") = "ieee", py::arg("numerics") = py::bytes(), py::arg("repeats") = 1);
  m.def(
      "run_part",
      [](const std::string& name, const std::vector<py::object>& inputs, const std::vector<py::object>& outputs,
         const std::string& attrs, const std::string& strings, int axis, int64_t begin, int64_t end,
         const std::map<size_t, int64_t>& rings, const std::string& family) {
        run_part(name, inputs, outputs, attrs, strings, axis, {begin, end}, rings, family);
      },
      py::arg("name"), py::arg("inputs"), py::arg("outputs"), py::arg("attrs"), py::arg("strings"), py::arg("axis"),
      py::arg("begin"), py::arg("end"), py::arg("rings") = std::map<size_t, int64_t>{}, py::arg("family") = "ieee");
}

}  // namespace hexane
