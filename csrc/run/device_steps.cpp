#include "run/device_steps.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace hexane::run {
namespace {

using Surfaces = std::vector<std::shared_ptr<device::Surface>>;
using Access = device::Surface::Access;

// Members are destroyed in reverse order: the request first, the program last.
struct Evaluation {
  std::shared_ptr<device::Program> program;
  Surfaces inputs;
  Surfaces outputs;
  std::unique_ptr<device::Request> request;
  uint32_t qos;
  pid_t process = ::getpid();

  // The CPU keeps views of surfaces between calls. A lock before and after the run orders the writes of CPU and
  // device.
  void run() const {
    if (process != ::getpid())
      fail("program",
           "got a call in a forked process, which cannot use its parent's device, need a model made in this process");
    for (const auto& surface : inputs) const Access written(*surface, false);
    request->evaluate(qos);
    for (const auto& surface : outputs) const Access to_read(*surface, true);
  }
};

std::string shown(const PlanTensor& tensor) {
  std::string text = "[";
  for (uint32_t i = 0; i < tensor.rank; ++i)
    text += (i ? ", " : "") + std::to_string(tensor.shape[i]) + " every " + std::to_string(tensor.strides[i]);
  return text + "]";
}

}  // namespace

DeviceSteps::DeviceSteps(const plan::Plan& plan, std::span<const DeviceProgram> programs, std::span<const Swap> swaps)
    : plan_(plan), surfaces_(plan.spaces.size()), steps_(plan.steps.size()), swaps_(swaps.begin(), swaps.end()) {
  std::vector<bool> touched = plan::device_spaces(plan_);
  for (const Swap& swap : swaps_)
    if (swap.state < touched.size()) touched[swap.state] = true;  // even if no program reads the state
  const auto count = std::count_if(plan_.steps.begin(), plan_.steps.end(),
                                   [&](const PlanStep& step) { return plan_.string(step.device) != "cpu"; });
  if (static_cast<size_t>(count) != programs.size())
    fail("program", "programs: got ", programs.size(), ", need ", count, ", one for each step of a device");
  for (uint32_t space = 0; space < surfaces_.size(); ++space)
    if (touched[space]) surfaces_[space] = std::make_shared<device::Surface>(plan_.spaces[space].bytes);
  for (const Swap& swap : swaps_) check(swap);
  auto next = programs.begin();
  for (size_t row = 0; row < plan_.steps.size(); ++row) {
    const PlanStep& step = plan_.steps[row];
    if (plan_.string(step.device) == "cpu") continue;
    const DeviceProgram& made = *next++;
    const std::string where = "program of step " + std::to_string(row);
    const auto operands = plan_.operands.subspan(step.operands, size_t{step.num_inputs} + step.num_outputs);
    const auto inputs = bound(where + ", input", made.program->inputs(), made.inputs, operands.first(step.num_inputs));
    const auto outputs =
        bound(where + ", output", made.program->outputs(), made.outputs, operands.subspan(step.num_inputs));
    const auto evaluation = [&](bool odd) {
      Surfaces from = in_turn(inputs, odd);
      Surfaces to = in_turn(outputs, odd);
      auto request = made.program->request(from, to);
      return std::make_shared<const Evaluation>(made.program, std::move(from), std::move(to), std::move(request),
                                                made.qos);
    };
    const auto even = evaluation(false);
    if (in_turn(inputs, true) == even->inputs && in_turn(outputs, true) == even->outputs)
      steps_[row] = [even] { even->run(); };
    else
      steps_[row] = [even, odd = evaluation(true), turn = turn_] { (turn->odd ? odd : even)->run(); };
  }
}

void DeviceSteps::check(const Swap& swap) const {
  const auto kind = [&](uint32_t space) { return plan_.string(plan_.spaces[space].kind); };
  const size_t count = plan_.spaces.size();
  if (swap.state >= count || swap.next >= count || kind(swap.state) != "state" || kind(swap.next) != "arena" ||
      !surfaces_[swap.state] || !surfaces_[swap.next] ||
      plan_.spaces[swap.state].bytes != plan_.spaces[swap.next].bytes)
    fail("program", "swaps: got the spaces ", swap.state, " and ", swap.next,
         ", need a state and an arena of its size, which a device touches");
}

// Returns the surfaces of these spaces; with `odd`, the surfaces after an odd number of swaps.
Surfaces DeviceSteps::in_turn(std::span<const uint32_t> spaces, bool odd) const {
  Surfaces result;
  for (const uint32_t space : spaces) {
    uint32_t other = space;
    for (const Swap& swap : swaps_)
      if (odd && (space == swap.state || space == swap.next)) other = space == swap.state ? swap.next : swap.state;
    result.push_back(surfaces_[other]);
  }
  return result;
}

device::Layout DeviceSteps::layout(const PlanTensor& tensor) const {
  return {
      plan_.dtype(tensor), {tensor.shape, tensor.shape + tensor.rank}, {tensor.strides, tensor.strides + tensor.rank}};
}

// Returns the space of each port, in the device's order.
std::vector<uint32_t> DeviceSteps::bound(const std::string& where, std::span<const device::Port> ports,
                                         std::span<const std::string> names, std::span<const uint32_t> operands) const {
  if (ports.size() != operands.size() || names.size() != operands.size())
    fail(where, "got ", operands.size(), " operands and ", names.size(), " names, need ", ports.size());
  std::vector<uint32_t> result;
  for (const device::Port& port : ports) {
    const auto found = std::find(names.begin(), names.end(), port.name);
    if (found == names.end()) fail(where, "'", port.name, "': got no operand of that name, need one");
    const PlanTensor& tensor = plan_.tensors[operands[static_cast<size_t>(found - names.begin())]];
    check(where + " '" + port.name + "'", tensor, port);
    result.push_back(tensor.space);
  }
  return result;
}

// A port has four axes. A tensor of rank r has the last r of them.
void DeviceSteps::check(const std::string& where, const PlanTensor& tensor, const device::Port& port) const {
  const DType dtype = plan_.dtype(tensor);
  const uint64_t strides[] = {port.batch_stride, port.plane_stride, port.row_stride,
                              static_cast<uint64_t>(info(dtype).bits / 8)};
  bool fits =
      dtype == port.dtype && tensor.rank <= port.shape.size() && plan_.spaces[tensor.space].bytes >= port.bytes();
  for (size_t axis = 0; fits && axis < port.shape.size(); ++axis) {
    const size_t before = port.shape.size() - tensor.rank;
    const int64_t extent = axis < before ? 1 : tensor.shape[axis - before];
    fits = extent == port.shape[axis] &&
           (extent <= 1 || static_cast<uint64_t>(tensor.strides[axis - before]) == strides[axis]);
  }
  if (!fits)
    fail(where, "got ", plan_.string(tensor.dtype), shown(tensor), " in ", plan_.spaces[tensor.space].bytes,
         " bytes, need ", info(port.dtype).name, "[", port.shape[0], " every ", strides[0], ", ", port.shape[1],
         " every ", strides[1], ", ", port.shape[2], " every ", strides[2], ", ", port.shape[3], " every ", strides[3],
         "] in ", port.bytes());
}

}  // namespace hexane::run
