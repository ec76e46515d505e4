// The class Program for Python: a plan that is ready to run, in a context of its own.
#include "bind/program.h"

#include <algorithm>

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "bind/new_array.h"
#include "bind/plan_sections.h"
#include "bind/register.h"
#include "core/file.h"
#include "core/file_mapping.h"
#include "core/memory.h"

namespace py = pybind11;

namespace hexane {
namespace {

// A C++ owner of Python objects that may be released without the GIL.
template <typename Held>
std::shared_ptr<const void> owner_of(Held held) {
  return {std::make_unique<Held>(std::move(held)).release(), [](const Held* object) {
            const py::gil_scoped_acquire acquire;
            std::default_delete<const Held>()(object);
          }};
}

std::vector<Port> ports_of(const plan::Plan& plan, const char* side, std::span<const PlanPort> rows) {
  std::vector<Port> result;
  for (const PlanPort& row : rows) {
    const PlanTensor& tensor = plan.tensors[row.tensor];
    const DType dtype = plan.dtype(tensor);
    result.push_back({std::string(side) + " '" + std::string(plan.string(row.name)) + "'", text(plan.string(row.name)),
                      text(plan.string(row.emitted_name)), dtype, numpy_dtype(dtype),
                      std::vector<py::ssize_t>(tensor.shape, tensor.shape + tensor.rank), row.length, row.axis});
  }
  return result;
}

std::unique_ptr<ProgramObject> first_context(const plan::Plan& plan, std::shared_ptr<const void> owner, int threads,
                                             std::shared_ptr<MemoryPool> pool = {},
                                             std::span<const run::DeviceProgram> programs = {},
                                             std::span<const run::Swap> swaps = {},
                                             std::shared_ptr<const void> state_owner = {}, bool packed_only = false) {
  auto context = [&] {
    const py::gil_scoped_release release;
    return run::Context::make(std::make_shared<run::Image>(plan, std::move(owner), threads, std::move(pool), programs,
                                                           swaps, std::move(state_owner), packed_only));
  }();
  return std::make_unique<ProgramObject>(std::move(context));
}

std::unique_ptr<ProgramObject> another_context(const ProgramObject& self) {
  auto context = [&] {
    const py::gil_scoped_release release;
    return self.context->another();
  }();
  return std::make_unique<ProgramObject>(std::move(context));
}

std::unique_ptr<ProgramObject> from_bytes(HeldBytes held, int threads) {
  Bytes bytes = held.bytes();
  if (reinterpret_cast<uintptr_t>(bytes.data()) % alignof(PlanTensor) == 0) {
    const plan::Plan plan = plan::read_plan(bytes);
    return first_context(plan, owner_of(std::move(held)), threads);
  }
  const auto copy = std::make_shared<Memory>(bytes.size(), "plan");
  if (!bytes.empty()) std::memcpy(copy->data(), bytes.data(), bytes.size());
  return first_context(plan::read_plan({copy->data(), copy->size()}), copy, threads);
}

using MadeProgram =
    std::tuple<std::shared_ptr<device::Program>, std::vector<std::string>, std::vector<std::string>, uint32_t>;

std::unique_ptr<ProgramObject> from_object(py::object source, int threads, const std::shared_ptr<MemoryPool>& pool,
                                           const std::vector<MadeProgram>& made,
                                           const std::vector<std::pair<std::string, std::string>>& swapped,
                                           bool packed_only) {
  if (threads < 1) fail("program", "threads: got ", threads, ", need at least 1");
  if (!py::isinstance<py::dict>(source)) {
    if (pool || !made.empty() || !swapped.empty())
      fail("program", "pool, programs: got some together with the bytes of a plan, need the plan's sections");
    return from_bytes(HeldBytes("plan", source), threads);
  }
  const auto held = std::make_shared<HeldSections>(source);
  const plan::Plan plan = plan::read_sections(held->sections());
  std::vector<run::DeviceProgram> programs;
  for (const auto& [program, inputs, outputs, qos] : made) {
    if (!program) fail("program", "programs: got None, need a program of a device");
    programs.push_back({program, inputs, outputs, qos});
  }
  const auto space = [&](const std::string& name) {
    for (uint32_t i = 0; i < plan.spaces.size(); ++i)
      if (plan.string(plan.spaces[i].name) == name) return i;
    fail("program", "swaps: got the space '", name, "', need one of the plan's");
  };
  std::vector<run::Swap> swaps;
  for (const auto& [state, next] : swapped) swaps.push_back({space(state), space(next)});
  auto result = first_context(plan, owner_of(held), threads, pool, programs, swaps, owner_of(held->take_state_pieces()),
                              packed_only);
  if (pool) held->let_go_weights();
  return result;
}

// Returns the pool's block with the array's bytes. The block lives as long as the returned object.
py::array kept_in(MemoryPool& pool, const py::array& array) {
  if (!(array.flags() & py::array::c_style)) fail("program", "keep: got an array with gaps, need a C-contiguous one");
  const Bytes bytes(static_cast<const std::byte*>(array.data()), static_cast<size_t>(array.nbytes()));
  const std::shared_ptr<FileMapping> file = FileMapping::at(array.data());
  auto block = [&] {
    const py::gil_scoped_release release;
    return std::make_unique<Block>(file ? pool.map(bytes, file) : pool.copy(bytes));
  }();
  const std::byte* data = (*block)->data();
  const py::capsule owner(block.release(), [](void* held) { delete static_cast<Block*>(held); });
  py::array view(array.dtype(), std::vector<py::ssize_t>(array.shape(), array.shape() + array.ndim()), data, owner);
  view.attr("setflags")(py::arg("write") = false);
  return view;
}

std::unique_ptr<ProgramObject> load(const std::string& path, int threads) {
  if (threads < 1) fail("program", "threads: got ", threads, ", need at least 1");
  auto [file, plan] = [&] {
    const py::gil_scoped_release release;
    auto bytes = std::make_shared<Memory>(read_file(path, sizeof(PlanHeader), plan::check_start));
    return std::pair(bytes, plan::read_plan({bytes->data(), bytes->size()}));
  }();
  return first_context(plan, std::move(file), threads);
}

// Returns the contents that save() writes.
py::bytes plan_bytes(const ProgramObject& self, bool states_now) {
  py::bytes result;
  const py::gil_scoped_release release;
  self.context->image().write(states_now ? self.context.get() : nullptr, [&](std::span<const Bytes> pieces) {
    size_t size = 0;
    for (const Bytes piece : pieces) size += piece.size();
    const py::gil_scoped_acquire acquire;
    result = py::reinterpret_steal<py::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
    if (!result) throw py::error_already_set();
    char* to = PyBytes_AS_STRING(result.ptr());
    const py::gil_scoped_release copying;
    for (const Bytes piece : pieces) to = std::copy_n(reinterpret_cast<const char*>(piece.data()), piece.size(), to);
  });
  return result;
}

// Returns the inputs of a run, in port order, as dense arrays of the ports' dtypes and shapes.
std::vector<py::array> gather_inputs(const ProgramObject& self, py::handle inputs) {
  std::vector<py::array> arrays;
  arrays.reserve(self.inputs.size());
  // The references are held, because a conversion may run Python code that changes the container.
  const auto add = [&](const Port& port, const py::object& value) {
    py::array array = as_array(port.where, value);
    port.check(array);
    arrays.push_back(port.is_dense(array) ? std::move(array) : py::array(array.attr("copy")("C")));
  };
  if (PyList_Check(inputs.ptr()) || PyTuple_Check(inputs.ptr())) {
    const auto values = py::reinterpret_steal<py::tuple>(PySequence_Tuple(inputs.ptr()));
    if (!values) throw py::error_already_set();
    if (values.size() != self.inputs.size())
      fail<InputError>("program", "inputs: got ", values.size(), ", need ", self.inputs.size());
    for (size_t i = 0; i < values.size(); ++i) add(self.inputs[i], values[i]);
    return arrays;
  }
  if (!PyDict_Check(inputs.ptr()) && !py::hasattr(inputs, "keys"))
    fail<InputError>("program", "inputs: got ", Py_TYPE(inputs.ptr())->tp_name, ", need a mapping, a list or a tuple");
  const py::dict by_name(py::reinterpret_borrow<py::object>(inputs));
  for (const Port& port : self.inputs) {
    const auto value = py::reinterpret_borrow<py::object>(PyDict_GetItemWithError(by_name.ptr(), port.name.ptr()));
    if (!value) fail<InputError>(port.where, "got nothing, need an array");
    add(port, value);
  }
  if (by_name.size() != self.inputs.size())
    for (const auto& item : by_name)
      if (std::none_of(self.inputs.begin(), self.inputs.end(), [&](const Port& p) { return p.name.equal(item.first); }))
        fail<InputError>("program", "inputs: got the name ", py::repr(item.first).cast<std::string>(),
                         ", which no input has");
  return arrays;
}

struct Arguments {
  std::vector<py::array> inputs;
  py::list outputs;
  run::Context::Ports ports;
};

Arguments make_arguments(const ProgramObject& self, py::handle inputs) {
  Arguments arguments{gather_inputs(self, inputs), py::list(self.outputs.size()), {}};
  auto& addresses = arguments.ports.addresses;
  addresses.reserve(self.inputs.size() + self.outputs.size());
  for (const py::array& array : arguments.inputs)
    addresses.push_back(static_cast<std::byte*>(const_cast<void*>(array.data())));
  for (size_t i = 0; i < self.outputs.size(); ++i) {
    py::array array = self.outputs[i].allocate();
    addresses.push_back(static_cast<std::byte*>(array.mutable_data()));
    PyList_SET_ITEM(arguments.outputs.ptr(), static_cast<py::ssize_t>(i), array.release().ptr());
  }
  return arguments;
}

py::list run_once(ProgramObject& self, py::handle inputs) {
  Arguments arguments = make_arguments(self, inputs);
  if (self.is_long || !self.callers->try_run(arguments.ports)) {
    const py::gil_scoped_release release;
    self.callers->run(arguments.ports);
  }
  return std::move(arguments.outputs);
}

// Returns a port with the shape and the NumPy dtype of a tensor.
Port port_of(const plan::Plan& plan, const PlanTensor& tensor, const std::string& where) {
  const DType dtype = plan.dtype(tensor);
  return {where, {}, {}, dtype, numpy_dtype(dtype), std::vector<py::ssize_t>(tensor.shape, tensor.shape + tensor.rank)};
}

py::list run_traced(ProgramObject& self, py::handle inputs, const py::function& after) {
  Arguments arguments = make_arguments(self, inputs);
  const plan::Plan& plan = self.context->plan();
  const auto show = [&](size_t index) {
    const py::gil_scoped_acquire acquire;
    const PlanStep& step = plan.steps[index];
    py::list copies;
    for (const uint32_t id : plan.operands.subspan(step.operands + step.num_inputs, step.num_outputs)) {
      const PlanTensor& tensor = plan.tensors[id];
      py::array array = port_of(plan, tensor, "trace").allocate();
      self.context->read(tensor, static_cast<std::byte*>(array.mutable_data()));
      copies.append(array);
    }
    if (!after(index, copies).is(py::bool_(true))) return;
    size_t place = 0;
    for (const uint32_t id : plan.operands.subspan(step.operands + step.num_inputs, step.num_outputs)) {
      const PlanTensor& tensor = plan.tensors[id];
      const py::array array = copies[place++];
      const Port port = port_of(plan, tensor, "trace");
      if (!array.dtype().equal(port.dtype) || !(array.flags() & py::array::c_style) ||
          !std::equal(array.shape(), array.shape() + array.ndim(), port.shape.begin(), port.shape.end()))
        fail("trace", "step ", index, ": got an array of another shape or dtype, need the one that was given");
      self.context->replace(tensor, static_cast<const std::byte*>(array.data()));
    }
  };
  {
    const py::gil_scoped_release release;
    self.context->trace(arguments.ports, show);
  }
  return std::move(arguments.outputs);
}

py::list port_infos(const std::vector<Port>& ports) {
  py::list result;
  for (const Port& port : ports)
    result.append(py::dict(py::arg("name") = port.name, py::arg("emitted_name") = port.emitted_name,
                           py::arg("dtype") = text(info(port.type).name),
                           py::arg("shape") = py::tuple(py::cast(port.shape)), py::arg("length") = port.length,
                           py::arg("axis") = port.axis));
  return result;
}

// The ports that are surfaces: inputs and outputs, by name.
py::tuple surfaces(const ProgramObject& self) {
  py::dict sides[2];
  for (const bool output : {false, true})
    for (const Port& port : output ? self.outputs : self.inputs)
      if (port.surface.surface) sides[output][port.name] = py::cast(port.surface);
  return py::make_tuple(sides[0], sides[1]);
}

// The dtype and shape of each named tensor in the weights or the state.
py::dict types(const ProgramObject& self, const std::string& kind) {
  const plan::Plan& plan = self.context->plan();
  py::dict result;
  for (const PlanTensor& tensor : plan.tensors) {
    const py::str name = text(plan.string(tensor.name));
    if (run::is_kind(plan, tensor, kind) && py::len(name) && !result.contains(name))
      result[name] =
          py::make_tuple(text(info(plan.dtype(tensor)).name),
                         py::tuple(py::cast(std::vector<py::ssize_t>(tensor.shape, tensor.shape + tensor.rank))));
  }
  return result;
}

py::list step_infos(ProgramObject& self) {
  const std::vector<cpu::Step>& steps = self.context->image().steps().steps();
  const auto times = [&] {
    const py::gil_scoped_release release;
    return self.context->times();
  }();
  py::list result;
  for (size_t i = 0; i < steps.size(); ++i)
    result.append(py::dict(py::arg("kernel") = steps[i].kernel->name,
                           py::arg("source") = text(self.context->plan().string(steps[i].row->source)),
                           py::arg("cost") = steps[i].cost, py::arg("parallel") = steps[i].chunk != 0,
                           py::arg("calls") = times[i].calls, py::arg("nanoseconds") = times[i].nanoseconds,
                           py::arg("median") = times[i].median, py::arg("waited") = steps[i].waited));
  return result;
}

// (step, begin, end) in nanoseconds, of the last call that was profiled.
py::list timeline(ProgramObject& self) {
  const auto spans = [&] {
    const py::gil_scoped_release release;
    return self.context->timeline();
  }();
  py::list result;
  for (const auto& span : spans) result.append(py::make_tuple(span.step, span.begin, span.end));
  return result;
}

// The names of the arithmetics that steps compute in.
py::list arithmetics(const ProgramObject& self) {
  const plan::Plan& plan = self.context->plan();
  py::list result;
  for (const PlanNumerics& numerics : plan.numerics) result.append(text(plan.string(numerics.name)));
  return result;
}

// Bytes of the context's own memories, by name.
py::dict own_memory(const ProgramObject& self) {
  py::dict result;
  for (const auto& [name, bytes] : self.context->own_memory()) result[text(name)] = bytes;
  return result;
}

// Bytes of each memory, by name.
py::dict memory(const ProgramObject& self) {
  const plan::Plan& plan = self.context->plan();
  py::dict result;
  for (const PlanSpace& space : plan.spaces)
    if (plan.string(space.kind) != "port") result[text(plan.string(space.name))] = space.bytes;
  return result;
}

// A copy of a state or weights tensor.
py::array contents(ProgramObject& self, std::string_view kind, const std::string& name) {
  const PlanTensor& tensor = self.context->image().find(kind, name);
  py::array array = port_of(self.context->plan(), tensor, name).allocate();
  auto* to = static_cast<std::byte*>(array.mutable_data());
  const py::gil_scoped_release release;
  self.context->read_contents(tensor, to);
  return array;
}

// Replaces the contents of a state or weights tensor by `value`.
template <typename Put>
void replace(ProgramObject& self, const char* kind, const std::string& name, py::handle value, Put put) {
  const PlanTensor& tensor = self.context->image().find(kind, name);
  const Port port = port_of(self.context->plan(), tensor, std::string(kind) + " '" + name + "'");
  py::array array = as_array(port.where, value);
  port.check(array);
  if (!port.is_dense(array)) array = py::array(array.attr("copy")("C"));
  const auto* from = static_cast<const std::byte*>(array.data());
  const py::gil_scoped_release release;
  put(tensor, from);
}

}  // namespace

py::array Port::allocate() const {
  const auto& api = py::detail::npy_api::get();
  auto* result =
      api.PyArray_NewFromDescr_(api.PyArray_Type_, py::dtype(dtype).release().ptr(), static_cast<int>(shape.size()),
                                const_cast<Py_intptr_t*>(shape.data()), nullptr, nullptr, 0, nullptr);
  if (!result) throw py::error_already_set();
  return py::reinterpret_steal<py::array>(result);
}

void Port::check(const py::array& array) const {
  const auto* proxy = py::detail::array_proxy(array.ptr());
  if (proxy->descr != dtype.ptr() && !array.dtype().equal(dtype))
    fail<InputError>(where, "dtype: got ", py::str(array.dtype()).cast<std::string>(), ", need ", numpy_name(type),
                     " in native byte order");
  if (static_cast<size_t>(proxy->nd) != shape.size() || !std::equal(shape.begin(), shape.end(), proxy->dimensions))
    fail<InputError>(where, "shape: got ", py::str(array.attr("shape")).cast<std::string>(), ", need ",
                     py::str(py::tuple(py::cast(shape))).cast<std::string>());
}

bool Port::is_dense(const py::array& array) const {
  const auto* proxy = py::detail::array_proxy(array.ptr());
  const auto item = static_cast<uintptr_t>(info(type).bits / 8);
  return (proxy->flags & py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_) &&
         (item == 0 || reinterpret_cast<uintptr_t>(proxy->data) % item == 0);
}

ProgramObject::ProgramObject(std::shared_ptr<run::Context> made)
    : inputs(ports_of(made->plan(), "input", made->plan().inputs)),
      outputs(ports_of(made->plan(), "output", made->plan().outputs)),
      context(std::move(made)),
      callers(std::make_unique<run::Callers>(context)),
      is_long(context->image().steps().cost() > kLongRun) {
  const plan::Plan& plan = context->plan();
  const auto find = [&](std::vector<Port>& ports, std::span<const PlanPort> rows) {
    for (size_t i = 0; i < rows.size(); ++i)
      if (const PlanTensor& tensor = plan.tensors[rows[i].tensor]; const auto& surface = context->surface(tensor))
        ports[i].surface = {surface, context->layout(tensor)};
  };
  find(inputs, plan.inputs);
  find(outputs, plan.outputs);
}

void register_program(py::module_& m) {
  using Self = ProgramObject;
  m.def("new_block", &new_array<uint8_t>, py::arg("bytes"));
  py::class_<MemoryPool, std::shared_ptr<MemoryPool>>(m, "MemoryPool")
      .def(py::init<>())
      .def("keep", &kept_in, py::arg("array"))
      .def(
          "is_shared",
          [](const MemoryPool& pool, const py::array& array) {
            return pool.holders(static_cast<const std::byte*>(array.data())) > 1;
          },
          py::arg("array"));
  py::class_<Self>(m, "Program")
      .def(py::init(&from_object), py::arg("plan"), py::arg("threads") = 1, py::arg("pool") = nullptr,
           py::arg("programs") = std::vector<MadeProgram>(),
           py::arg("swaps") = std::vector<std::pair<std::string, std::string>>(), py::arg("packed_only") = false)
      .def_static("load", &load, py::arg("path"), py::arg("threads") = 1)
      .def_property_readonly("inputs", [](const Self& self) { return port_infos(self.inputs); })
      .def_property_readonly("outputs", [](const Self& self) { return port_infos(self.outputs); })
      .def_property_readonly("surfaces", &surfaces)
      .def("types", &types, py::arg("kind"))
      .def_property_readonly("steps", &step_infos)
      .def_property_readonly("timeline", &timeline)
      .def_property_readonly("arithmetics", &arithmetics)
      .def_property_readonly("threads", [](const Self& self) { return self.context->image().steps().threads(); })
      .def_property_readonly("cost", [](const Self& self) { return self.context->image().steps().cost(); })
      .def_property_readonly("memory", &memory)
      .def_property_readonly("own_memory", &own_memory)
      .def_property_readonly("table_bytes", [](const Self& self) { return self.context->table_bytes(); })
      .def_property_readonly("scratch_bytes", [](const Self& self) { return self.context->scratch_bytes(); })
      .def_property_readonly("unshared_bytes", [](const Self& self) { return self.context->image().unshared_bytes(); })
      .def("context", &another_context)
      .def(
          "share_states", [](Self& self, const Self& other) { self.context->share_states(other.context); },
          py::arg("other"))
      .def(
          "limit_callers", [](Self& self, int most) { self.callers->limit(most); }, py::arg("most"))
      .def_property_readonly("callers", [](const Self& self) { return self.callers->made(); })
      .def("run", &run_once, py::arg("inputs"))
      .def("trace", &run_traced, py::arg("inputs"), py::arg("after"))
      .def(
          "bind",
          [](py::object self, const py::dict& buffers) {
            return make_bound(self, py::cast<ProgramObject&>(self), buffers);
          },
          py::arg("buffers"))
      .def(
          "profile", [](Self& self, bool on) { self.context->profile(on); }, py::arg("on"),
          py::call_guard<py::gil_scoped_release>())
      .def(
          "reset_state", [](Self& self) { self.context->reset_state(); }, py::call_guard<py::gil_scoped_release>())
      .def(
          "drop_first_contents", [](Self& self) { self.context->image().drop_first_contents(); },
          py::call_guard<py::gil_scoped_release>())
      .def(
          "read_state", [](Self& self, const std::string& name) { return contents(self, "state", name); },
          py::arg("name"))
      .def(
          "read_param", [](Self& self, const std::string& name) { return contents(self, "weights", name); },
          py::arg("name"))
      .def(
          "write_state",
          [](Self& self, const std::string& name, py::handle value) {
            replace(self, "state", name, value,
                    [&](const PlanTensor& tensor, const std::byte* from) { self.context->write_state(tensor, from); });
          },
          py::arg("name"), py::arg("value"))
      .def(
          "update",
          [](Self& self, const std::string& name, py::handle value) {
            replace(self, "weights", name, value, [&](const PlanTensor& tensor, const std::byte* from) {
              self.context->image().update(tensor, from);
            });
          },
          py::arg("name"), py::arg("value"))
      .def(
          "save",
          [](Self& self, const std::string& path, bool states_now) {
            self.context->image().save(path, states_now ? self.context.get() : nullptr);
          },
          py::arg("path"), py::arg("states_now") = false, py::call_guard<py::gil_scoped_release>())
      .def("plan_bytes", &plan_bytes, py::arg("states_now") = false);
  m.def("isa", [] { return cpu::isa(); });
  m.def("give_back_free_memory", &give_back_free_memory, py::call_guard<py::gil_scoped_release>());
  register_bound(m);
}

}  // namespace hexane
