#include "plan/streamed_ports.h"

#include <algorithm>
#include <string>
#include <vector>

#include "plan/lifetimes.h"
#include "plan/loops.h"

namespace hexane::plan {
namespace {

uint64_t elements(const PlanTensor& tensor) {
  uint64_t count = 1;
  for (uint32_t axis = 0; axis < tensor.rank; ++axis) count *= static_cast<uint64_t>(tensor.shape[axis]);
  return count;
}

// True if the rows of axis 1 follow one another without gaps, and so does the whole tensor if axis 0 has several
// entries.
bool lies_in_rows(const PlanTensor& tensor, DType dtype) {
  int64_t stride = info(dtype).bits / 8;
  for (uint32_t axis = tensor.rank; axis-- > 0;) {
    if (tensor.shape[axis] != 1 && tensor.strides[axis] != stride) return false;
    stride *= tensor.shape[axis];
  }
  return !tensor.ring || tensor.shape[0] == 1;
}

// Throws Error unless the step's runs pass all rows in order, each once.
void check_runs(const Plan& plan, const std::string& where, size_t row, const std::vector<Run>& runs) {
  const PlanStep& step = plan.steps[row];
  const PlanTensor& out = plan.tensors[plan.operands[step.operands + step.num_inputs]];
  if (step.cut_axis == -1) return;
  if (step.cut_axis != 1 || out.shape[0] != 1)
    fail(where, "streamed: got a copy cut along axis ", step.cut_axis, ", need it by the rows of one image");
  int64_t done = 0;
  for (const Run& run : runs) {
    if (run.step != row) continue;
    const bool in_loop = run.begin < run.end;
    if ((in_loop ? run.begin : step.begin) != done)
      fail(where, "streamed: got row ", in_loop ? run.begin : step.begin, ", need row ", done, " next");
    done = in_loop ? run.end : step.end;
  }
  if (done != out.shape[1]) fail(where, "streamed: got ", done, " rows, need all ", out.shape[1]);
}

void check_port(const Plan& plan, const char* section, size_t i, bool is_input, const std::vector<Run>& runs) {
  const PlanPort& port = (is_input ? plan.inputs : plan.outputs)[i];
  const PlanTensor& whole = plan.tensors[port.tensor];
  const std::string where =
      "plan: " + std::string(section) + "[" + std::to_string(i) + "]: " + std::string(plan.string(port.name));
  if (port.length) fail(where, "streamed: got an output with a length, need one of fixed shape");
  size_t users = 0;
  for (size_t row = 0; row < plan.steps.size(); ++row) {
    const PlanStep& step = plan.steps[row];
    const auto operands = plan.operands.subspan(step.operands, size_t{step.num_inputs} + step.num_outputs);
    const auto touches = [&](uint32_t id) { return id != PLAN_ABSENT && plan.tensors[id].space == whole.space; };
    if (std::none_of(operands.begin(), operands.end(), touches)) continue;
    if (users++ || plan.string(step.kernel) != "copy" || step.num_inputs != 1 || step.num_outputs != 1 ||
        operands[0] == PLAN_ABSENT)
      fail(where, "streamed: got step ", row, " (", plan.string(step.kernel), ") on it, need one step, a copy");
    const PlanTensor& own = plan.tensors[operands[is_input ? 0 : 1]];
    const PlanTensor& rows = plan.tensors[operands[is_input ? 1 : 0]];
    const DType dtype = plan.dtype(whole);
    if (own.offset || own.ring || elements(own) != elements(whole) || own.dtype != whole.dtype ||
        rows.dtype != whole.dtype || overlaps_itself(own, dtype))
      fail(where, "streamed: got a copy of a part, need all of it");
    if (rows.rank != own.rank || !std::equal(own.shape, own.shape + own.rank, rows.shape))
      fail(where, "streamed: got a copy that broadcasts, need one element for one");
    if (plan.kind(rows) != "arena" || !lies_in_rows(rows, dtype))
      fail(where, "streamed: got a copy between it and ", plan.kind(rows), ", need rows without gaps in an arena");
    check_runs(plan, where, row, runs);
  }
}

}  // namespace

void check_streamed_ports(const Plan& plan) {
  const auto is_streamed = [](const PlanPort& port) { return port.streamed != 0; };
  if (std::none_of(plan.inputs.begin(), plan.inputs.end(), is_streamed) &&
      std::none_of(plan.outputs.begin(), plan.outputs.end(), is_streamed))
    return;
  const std::vector<Run> runs = unroll(plan, 0, plan.steps.size());
  for (size_t i = 0; i < plan.inputs.size(); ++i)
    if (plan.inputs[i].streamed) check_port(plan, "inputs", i, true, runs);
  for (size_t i = 0; i < plan.outputs.size(); ++i)
    if (plan.outputs[i].streamed) check_port(plan, "outputs", i, false, runs);
}

}  // namespace hexane::plan
