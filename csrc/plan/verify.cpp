// Verifies the contents of a plan: strings, spaces, tensors, ports, then every step's operands and the bytes it reads
// and writes. Shares no code with the makers of plans.
#include <algorithm>
#include <bit>
#include <set>
#include <utility>
#include <vector>

#include "core/limits.h"
#include "core/numerics.h"
#include "plan/blocks.h"
#include "plan/lifetimes.h"
#include "plan/loops.h"
#include "plan/reader.h"
#include "plan/streamed_ports.h"

namespace hexane::plan {
namespace {

template <typename... Parts>
[[noreturn]] void bad(const char* section, size_t row, const Parts&... parts) {
  fail("plan", section, "[", row, "]: ", parts...);
}

void check_utf8(Bytes bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const auto lead = std::to_integer<uint32_t>(bytes[i]);
    const size_t length = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
    uint32_t code = length < 2 ? lead : lead & (0x7f >> length);
    bool valid = length != 0 && length <= bytes.size() - i;
    for (size_t k = 1; valid && k < length; ++k) {
      const auto next = std::to_integer<uint32_t>(bytes[i + k]);
      valid = next >> 6 == 2;
      code = code << 6 | (next & 0x3f);
    }
    constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
    if (!valid || code < kSmallest[length] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
      fail("plan", "strings: byte ", i, ": got 0x", std::hex, lead, ", need UTF-8");
    i += length;
  }
}

// After this check every offset below the section's size begins a terminated string.
void check_strings(Bytes strings) {
  if (strings.empty() || strings.front() != std::byte{} || strings.back() != std::byte{})
    fail("plan", "strings: need a zero byte first and last");
  check_utf8(strings);
}

void check_string(const Plan& plan, const char* section, size_t row, const char* field, uint64_t offset) {
  if (offset >= plan.strings.size())
    bad(section, row, field, ": got string ", offset, ", need less than ", plan.strings.size());
}

void check_pieces(const char* section, std::span<const Piece> pieces, uint64_t bytes) {
  uint64_t end = 0;
  for (const Piece& piece : pieces) {
    if (piece.offset < end || piece.offset > bytes || piece.bytes.size() > bytes - piece.offset)
      fail("plan", section, ": got ", piece.bytes.size(), " bytes at ", piece.offset,
           ", need at most those of its spaces, ", bytes, ", each once");
    end = piece.offset + piece.bytes.size();
  }
}

void check_spaces(const Plan& plan) {
  std::set<std::string_view> names;
  uint64_t weights = 0, state = 0;
  bool any_weights = false;
  for (size_t i = 0; i < plan.spaces.size(); ++i) {
    const PlanSpace& space = plan.spaces[i];
    check_string(plan, "spaces", i, "name", space.name);
    check_string(plan, "spaces", i, "kind", space.kind);
    if (space.bytes > kMaxBytes) bad("spaces", i, "bytes: got ", space.bytes, ", need at most ", kMaxBytes);
    const std::string_view kind = plan.string(space.kind);
    if (kind != "weights" && kind != "arena" && kind != "state" && kind != "param" && kind != "port")
      bad("spaces", i, "kind: got '", kind, "', need weights, arena, state, param or port");
    const std::string_view name = plan.string(space.name);
    if (space.limit && space.bytes > space.limit)
      bad("spaces", i, name, ": bytes: got ", space.bytes, ", need at most its limit, ", space.limit);
    if (!std::has_single_bit(space.alignment) || space.alignment > PLAN_MOST_ALIGNMENT)
      bad("spaces", i, name, ": alignment: got ", space.alignment, ", need a power of two up to ", PLAN_MOST_ALIGNMENT);
    if (kind == "port") continue;
    if (!names.insert(name).second) bad("spaces", i, "name: got a second '", name, "', need one");
    if (kind == "arena") continue;
    if (kind == "weights") {
      if (any_weights) bad("spaces", i, "kind: got a second 'weights', need one");
      any_weights = true;
    }
    uint64_t& total = kind == "weights" ? weights : state;
    if (space.bytes > kMaxBytes - total) bad("spaces", i, name, ": bytes: got more than ", kMaxBytes, " in all");
    total += space.bytes;
  }
  check_pieces("state", plan.state, state);
  if (const uint64_t bytes = end_of(plan.weights); bytes != weights && (plan.blocks.empty() || bytes > weights))
    fail("plan", "weights: got ", bytes, " bytes, need those of the space, ", weights);
  check_pieces("weights", plan.weights, weights);
  if (plan.weights.size() > 1 && !plan.blocks.empty()) fail("plan", "weights: got pieces and blocks, need one of them");
}

// Returns the most elements that a view may have. A broadcast view may have more elements than memory, but seldom many
// times as many. The limit bounds the time that a kernel of a hostile plan can take: to well under a second, or in
// proportion to the memory that the plan requests.
uint64_t most_elements(const Plan& plan) {
  constexpr uint64_t kAlways = uint64_t{1} << 26;
  uint64_t bytes = 0;
  for (const PlanSpace& space : plan.spaces) bytes += std::min(space.bytes, kMaxBytes - bytes);
  return std::clamp(8 * bytes, kAlways, kMaxBytes);
}

void check_tensor(const Plan& plan, size_t row, uint64_t most_elements) {
  const PlanTensor& tensor = plan.tensors[row];
  check_string(plan, "tensors", row, "name", tensor.name);
  check_string(plan, "tensors", row, "dtype", tensor.dtype);
  check_string(plan, "tensors", row, "layout", tensor.layout);
  const std::string_view name = plan.string(tensor.name);
  if (tensor.space >= plan.spaces.size())
    bad("tensors", row, name, ": space: got ", tensor.space, ", need less than ", plan.spaces.size());
  const DType dtype = dtype_from_name(plan.string(tensor.dtype));
  const uint64_t itemsize = (static_cast<uint64_t>(info(dtype).bits) + 7) / 8;
  if (tensor.rank > PLAN_MAX_RANK) bad("tensors", row, name, ": rank: got ", tensor.rank, ", need at most 8");
  // Zero extents are left out of the products, so that no partial product in a kernel can overflow either.
  uint64_t elements = 1, last = itemsize;
  for (uint32_t axis = 0; axis < PLAN_MAX_RANK; ++axis) {
    const int64_t extent = tensor.shape[axis], stride = tensor.strides[axis];
    if (axis >= tensor.rank) {
      if (extent || stride) bad("tensors", row, name, ": axis ", axis, " is beyond the rank and not zero");
      continue;
    }
    constexpr auto kMost = static_cast<int64_t>(kMaxBytes);
    if (extent < 0 || extent > kMost)
      bad("tensors", row, name, ": shape[", axis, "]: got ", extent, ", need 0 to ", kMost);
    if (stride < 0 || stride > kMost)
      bad("tensors", row, name, ": strides[", axis, "]: got ", stride, ", need 0 to ", kMost);
    if (stride % static_cast<int64_t>(itemsize))
      bad("tensors", row, name, ": strides[", axis, "]: got ", stride, ", need a multiple of ", itemsize);
    if (extent == 0) continue;
    if (static_cast<uint64_t>(extent) > most_elements / elements)
      bad("tensors", row, name, ": shape: got more than ", most_elements, " elements");
    elements *= static_cast<uint64_t>(extent);
    if (stride && static_cast<uint64_t>(extent - 1) > (kMaxBytes - last) / static_cast<uint64_t>(stride))
      bad("tensors", row, name, ": strides: got more than ", kMaxBytes, " bytes");
    last += static_cast<uint64_t>(extent - 1) * static_cast<uint64_t>(stride);
  }
  if (tensor.ring && (tensor.rank < 2 || tensor.ring > static_cast<uint64_t>(tensor.shape[1])))
    bad("tensors", row, name, ": ring: got ", tensor.ring, ", need at most the rows of axis 1");
  if (tensor.offset % itemsize)
    bad("tensors", row, name, ": offset: got ", tensor.offset, ", need a multiple of ", itemsize);
  const std::string where = "plan: tensors[" + std::to_string(row) + "]: " + std::string(name);
  check_range(where, "bytes", tensor.offset, extent_bytes(tensor, dtype), plan.spaces[tensor.space].bytes);
}

// Row-major without gaps. An axis of extent 1 may have any stride, and so may every axis of a tensor without elements.
bool is_dense(const PlanTensor& tensor, int64_t itemsize) {
  if (std::find(tensor.shape, tensor.shape + tensor.rank, 0) != tensor.shape + tensor.rank) return true;
  int64_t stride = itemsize;
  for (int axis = static_cast<int>(tensor.rank) - 1; axis >= 0; --axis) {
    if (tensor.shape[axis] != 1 && tensor.strides[axis] != stride) return false;
    stride *= tensor.shape[axis];
  }
  return true;
}

// Checks that the port's valid length is given by an output of one int64 number, which has no valid length itself.
void check_length(const Plan& plan, const char* section, size_t row, bool input) {
  const PlanPort& port = (input ? plan.inputs : plan.outputs)[row];
  const std::string_view name = plan.string(port.name);
  if (port.length == 0) {
    if (port.axis) bad(section, row, name, ": axis: got ", port.axis, ", need 0 without a length");
    return;
  }
  if (input) bad(section, row, name, ": length: got ", port.length, ", need 0: inputs have their shapes");
  if (port.length > plan.outputs.size())
    bad(section, row, name, ": length: got ", port.length, ", need at most ", plan.outputs.size());
  const PlanPort& length = plan.outputs[port.length - 1];
  const PlanTensor& tensor = plan.tensors[length.tensor];
  if (tensor.rank != 0 || plan.dtype(tensor) != DType::kInt64 || length.length)
    bad(section, row, name, ": length: got the output '", plan.string(length.name), "', need one int64 number");
  const uint32_t rank = plan.tensors[port.tensor].rank;
  if (port.axis >= rank) bad(section, row, name, ": axis: got ", port.axis, ", need less than the rank, ", rank);
}

// Returns for each space whether it is an input port's. Checks that every port space belongs to exactly one port, whose
// tensor fills the space.
std::vector<bool> check_ports(const Plan& plan) {
  std::vector<bool> used(plan.spaces.size()), is_input(plan.spaces.size());
  const std::vector<bool> is_surface = device_spaces(plan);
  for (const auto* section : {"inputs", "outputs"}) {
    const bool input = std::string_view(section) == "inputs";
    const auto ports = input ? plan.inputs : plan.outputs;
    std::set<std::string_view> names;  // an output may share an input's name: a model may return its input
    for (size_t i = 0; i < ports.size(); ++i) {
      const PlanPort& port = ports[i];
      check_string(plan, section, i, "name", port.name);
      check_string(plan, section, i, "emitted_name", port.emitted_name);
      const std::string_view name = plan.string(port.name);
      if (name.empty() || !names.insert(name).second)
        bad(section, i, "name: got '", name, "', need a name of its own among the ", section);
      if (port.streamed > 1) bad(section, i, name, ": streamed: got ", port.streamed, ", need 0 or 1");
      if (port.tensor >= plan.tensors.size())
        bad(section, i, name, ": tensor: got ", port.tensor, ", need less than ", plan.tensors.size());
      const PlanTensor& tensor = plan.tensors[port.tensor];
      const PlanSpace& space = plan.spaces[tensor.space];
      if (plan.kind(tensor) != "port") bad(section, i, name, ": got a tensor in ", plan.kind(tensor), ", need a port");
      if (used[tensor.space]) bad(section, i, name, ": got the space of another port, need its own");
      const DType dtype = plan.dtype(tensor);
      const int bits = info(dtype).bits;
      if (bits % 8) bad(section, i, name, ": got ", info(dtype).name, ", need a dtype of whole bytes");
      const bool fills = is_dense(tensor, bits / 8) && extent_bytes(tensor, dtype) == space.bytes;
      if (tensor.offset || tensor.ring || !(fills || is_surface[tensor.space]))
        bad(section, i, name, ": need a dense tensor that fills its space of ", space.bytes, " bytes");
      used[tensor.space] = true;
      is_input[tensor.space] = input;
    }
  }
  for (size_t i = 0; i < plan.inputs.size(); ++i) check_length(plan, "inputs", i, true);
  for (size_t i = 0; i < plan.outputs.size(); ++i) check_length(plan, "outputs", i, false);
  for (size_t i = 0; i < plan.spaces.size(); ++i)
    if (!used[i] && plan.string(plan.spaces[i].kind) == "port") bad("spaces", i, "got a port space without a port");
  return is_input;
}

void check_numerics(const Plan& plan) {
  for (size_t row = 0; row < plan.numerics.size(); ++row) {
    const PlanNumerics& numerics = plan.numerics[row];
    check_string(plan, "numerics", row, "name", numerics.name);
    check_string(plan, "numerics", row, "family", numerics.family);
    const std::string_view name = plan.string(numerics.name), family = plan.string(numerics.family);
    const auto known = std::find_if(kNumericsFamilies.begin(), kNumericsFamilies.end(),
                                    [&](const NumericsFamily& known) { return known.name == family; });
    if (known == kNumericsFamilies.end()) {
      std::string names;
      for (const NumericsFamily& one : kNumericsFamilies) names += (names.empty() ? "" : ", ") + std::string(one.name);
      bad("numerics", row, name, ": family: got '", family, "', need one of ", names);
    }
    if (numerics.bytes != known->bytes)
      bad("numerics", row, name, ": bytes: got ", numerics.bytes, ", need ", known->bytes, " for the family ", family);
    if (numerics.offset % 8) bad("numerics", row, name, ": offset: got ", numerics.offset, ", need a multiple of 8");
    check_range("plan: numerics[" + std::to_string(row) + "]: " + std::string(name), "parameters", numerics.offset,
                numerics.bytes, plan.attrs.size());
  }
}

void check_step_fields(const Plan& plan, size_t row, uint64_t first_operand, bool in_loop) {
  const PlanStep& step = plan.steps[row];
  check_string(plan, "steps", row, "kernel", step.kernel);
  check_string(plan, "steps", row, "device", step.device);
  check_string(plan, "steps", row, "source", step.source);
  const std::string where = "plan: steps[" + std::to_string(row) + "]: " + std::string(plan.string(step.kernel));
  if (step.numerics >= plan.numerics.size())
    fail(where, "numerics: got ", step.numerics, ", need less than ", plan.numerics.size());
  const std::string_view device = plan.string(step.device);
  if (device != "cpu" && device != "ane") fail(where, "device: got '", device, "', need cpu or ane");
  if (device == "ane" && (in_loop || step.cut_axis != -1))
    fail(where, "device: got ane, need cpu for a part of a step");
  const uint64_t count = uint64_t{step.num_inputs} + step.num_outputs;
  check_range(where, "operands", step.operands, count, plan.operands.size());
  if (step.operands != first_operand)
    fail(where, "operands: got ", step.operands, ", need ", first_operand, ", behind those of the step before");
  if (step.num_outputs == 0) fail(where, "outputs: got 0, need at least 1");
  if (step.attrs % 8 || step.attrs_bytes % 8)
    fail(where, "attrs: got [", step.attrs, ", +", step.attrs_bytes, "), need multiples of 8");
  check_range(where, "attrs", step.attrs, step.attrs_bytes, plan.attrs.size());
  const bool whole = step.cut_axis == -1 && step.begin == 0 && step.end == 0;
  const bool cut =
      step.cut_axis >= 0 && step.cut_axis < PLAN_MAX_RANK && (in_loop || step.begin >= 0) && step.begin < step.end;
  if (!whole && !cut)
    fail(where, "cut: got axis ", step.cut_axis, " [", step.begin, ", ", step.end,
         "), need a range, or axis -1 [0, 0)");
  for (uint64_t i = 0; i < count; ++i) {
    const uint32_t operand = plan.operands[step.operands + i];
    const bool absent = operand == PLAN_ABSENT && i < step.num_inputs;
    if (!absent && operand >= plan.tensors.size())
      fail(where, "operand ", i, ": got tensor ", operand, ", need less than ", plan.tensors.size());
  }
}

// A run of a step writes the range of its cut axis. A run may write anywhere into a ring.
void add_written(const Plan& plan, const PlanStep& step, int64_t begin, int64_t end,
                 std::vector<WrittenBytes>& written) {
  for (const uint32_t id : plan.operands.subspan(step.operands + step.num_inputs, step.num_outputs)) {
    PlanTensor out = plan.tensors[id];
    const int64_t axis = step.cut_axis;
    if (axis >= 0 && axis < out.rank && end <= out.shape[axis] && !(out.ring && axis == 1)) {
      out.offset += static_cast<uint64_t>(begin * out.strides[axis]);
      out.shape[axis] = end - begin;
    }
    written[out.space].add(out.offset, extent_bytes(out, plan.dtype(out)));
  }
}

// Checks that each memory of a device has one tensor, at its start.
void check_surfaces(const Plan& plan) {
  std::vector<const PlanTensor*> held(plan.spaces.size());
  const auto check = [&](const std::string& where, const PlanTensor& tensor) {
    if (tensor.offset || tensor.ring || plan.kind(tensor) == "weights")
      fail(where, plan.string(tensor.name), ": got offset ", tensor.offset, " in ", plan.kind(tensor),
           ", need the start of a memory of its own for a device");
    const PlanTensor*& other = held[tensor.space];
    if (other && !(is_same_view(*other, tensor) && other->dtype == tensor.dtype))
      fail(where, plan.string(tensor.name), ": got a second tensor in the memory of a device, need one");
    other = &tensor;
  };
  for (size_t row = 0; row < plan.steps.size(); ++row) {
    const PlanStep& step = plan.steps[row];
    if (plan.string(step.device) == "cpu") continue;
    for (const uint32_t id : plan.operands.subspan(step.operands, size_t{step.num_inputs} + step.num_outputs)) {
      if (id == PLAN_ABSENT) fail("plan", "steps[", row, "]: got an absent operand, need them all on a device");
      check("plan: steps[" + std::to_string(row) + "]: ", plan.tensors[id]);
    }
  }
}

// A step reads only results of earlier steps, ports, weights and states. A step writes only memory that a program may
// write, and no byte of an input, unless input and output are exactly the same view. A step in a loop may read results
// of any step of the loop; cpu/row_order.h, which knows the kernels, checks that their rows are written in time.
void check_steps(const Plan& plan, const std::vector<bool>& is_input) {
  std::vector<WrittenBytes> written(plan.spaces.size());
  std::vector<bool> in_loop(plan.steps.size());
  const std::vector<PlanLoop> loops = outer_loops(plan);
  for (const PlanLoop& loop : loops)
    for (size_t row = loop.first_step; row < in_loop.size() && row - loop.first_step < loop.num_steps; ++row)
      in_loop[row] = true;
  uint64_t first_operand = 0;
  for (size_t row = 0; row < plan.steps.size(); ++row) {
    check_step_fields(plan, row, first_operand, in_loop[row]);
    first_operand += uint64_t{plan.steps[row].num_inputs} + plan.steps[row].num_outputs;
  }
  if (first_operand != plan.operands.size())
    fail("plan", "operands: got ", plan.operands.size(), ", need ", first_operand, ", those of the steps");
  check_loops(plan);
  check_surfaces(plan);
  LiveBlocks blocks(plan);
  auto loop = loops.begin();
  for (size_t row = 0; row < plan.steps.size(); ++row) {
    for (const PlanBlock& block : blocks.begin(row)) written[block.arena].remove(block.arena_offset, block.bytes);
    if (loop != loops.end() && loop->first_step == row) {
      for (const Run& run : unroll(plan, row, row + loop->num_steps))
        add_written(plan, plan.steps[run.step], run.begin, run.end, written);
      ++loop;
    }
    const PlanStep& step = plan.steps[row];
    const std::string where = "plan: steps[" + std::to_string(row) + "]: " + std::string(plan.string(step.kernel));
    const auto operands = plan.operands.subspan(step.operands, size_t{step.num_inputs} + step.num_outputs);
    for (const uint32_t id : operands)
      if (id != PLAN_ABSENT) blocks.check_operand(where, plan.tensors[id]);
    for (size_t i = 0; i < step.num_inputs; ++i) {
      if (operands[i] == PLAN_ABSENT) continue;
      const PlanTensor& in = plan.tensors[operands[i]];
      const std::string_view kind = plan.kind(in);
      const bool given = kind == "weights" || kind == "state" || kind == "param" || is_input[in.space];
      if (!given && !written[in.space].covers(in, plan.dtype(in)))
        fail(where, "input ", i, " (", plan.string(in.name), "): reads bytes that no earlier step has written");
    }
    for (size_t i = step.num_inputs; i < operands.size(); ++i) {
      const PlanTensor& out = plan.tensors[operands[i]];
      const DType dtype = plan.dtype(out);
      if (plan.kind(out) == "weights" || plan.kind(out) == "param" || is_input[out.space])
        fail(where, "output ", i - step.num_inputs, " (", plan.string(out.name), "): got a tensor that is only read");
      if (overlaps_itself(out, dtype))
        fail(where, "output ", i - step.num_inputs, " (", plan.string(out.name), "): its elements overlap");
      for (size_t other = 0; other < i; ++other) {
        if (operands[other] == PLAN_ABSENT) continue;
        const PlanTensor& before = plan.tensors[operands[other]];
        const bool in_place =
            other < step.num_inputs && is_same_view(before, out) && info(plan.dtype(before)).bits == info(dtype).bits;
        if (!in_place && may_overlap(before, plan.dtype(before), out, dtype))
          fail(where, "operand ", i, " (", plan.string(out.name), ") overlaps operand ", other, " (",
               plan.string(before.name), "), need the same view or none of its bytes");
      }
    }
    if (!in_loop[row]) add_written(plan, step, step.begin, step.end, written);
  }
  for (const PlanPort& port : plan.outputs) {
    const PlanTensor& tensor = plan.tensors[port.tensor];
    if (!written[tensor.space].covers(tensor, plan.dtype(tensor)))
      fail("plan", "outputs: ", plan.string(port.name), ": no step writes all of it");
  }
}

}  // namespace

// Accepts plans that are not verified yet.
std::vector<bool> device_spaces(const Plan& plan) {
  std::vector<bool> result(plan.spaces.size());
  uint64_t begin = 0, end = 0;
  for (const PlanStep& step : plan.steps) {
    begin = std::exchange(end, end + step.num_inputs + step.num_outputs);
    if (step.operands != begin || end > plan.operands.size()) break;  // other checks refuse this plan
    if (step.device >= plan.strings.size() || plan.string(step.device) == "cpu") continue;
    for (const uint32_t id : plan.operands.subspan(begin, end - begin))
      if (id < plan.tensors.size()) result[plan.tensors[id].space] = true;
  }
  return result;
}

const PlanSpace* weights_space(const Plan& plan) {
  const auto found = std::find_if(plan.spaces.begin(), plan.spaces.end(),
                                  [&](const PlanSpace& space) { return plan.string(space.kind) == "weights"; });
  return found == plan.spaces.end() ? nullptr : &*found;
}

uint64_t extent_bytes(const PlanTensor& tensor, DType dtype) {
  int64_t last = (info(dtype).bits + 7) / 8;
  for (uint32_t axis = 0; axis < tensor.rank; ++axis) {
    if (tensor.shape[axis] == 0) return 0;
    const int64_t rows = axis == 1 && tensor.ring ? tensor.ring : tensor.shape[axis];
    last += (rows - 1) * tensor.strides[axis];
  }
  return static_cast<uint64_t>(last);
}

Plan read_sections(const Sections& sections) {
  const auto section = [&](Section which) { return sections[which]; };
  const Plan plan{section(kStrings),
                  rows<PlanSpace>("plan: spaces", section(kSpaces)),
                  rows<PlanTensor>("plan: tensors", section(kTensors)),
                  rows<uint32_t>("plan: operands", section(kOperands)),
                  rows<PlanNumerics>("plan: numerics", section(kNumerics)),
                  rows<PlanStep>("plan: steps", section(kSteps)),
                  rows<PlanLoop>("plan: loops", section(kLoops)),
                  rows<int64_t>("plan: moves", section(kMoves)),
                  section(kAttrs),
                  rows<PlanPort>("plan: inputs", section(kInputs)),
                  rows<PlanPort>("plan: outputs", section(kOutputs)),
                  rows<PlanBlock>("plan: blocks", section(kBlocks)),
                  pieces_of(sections, kWeights),
                  section(kPacked),
                  pieces_of(sections, kState)};
  if (reinterpret_cast<uintptr_t>(plan.attrs.data()) % 8)
    fail("plan", "attrs: got address ", plan.attrs.data(), ", need it aligned to 8 bytes");
  check_strings(plan.strings);
  check_spaces(plan);
  check_numerics(plan);
  const uint64_t most = most_elements(plan);
  for (size_t row = 0; row < plan.tensors.size(); ++row) check_tensor(plan, row, most);
  check_steps(plan, check_ports(plan));
  check_streamed_ports(plan);
  return plan;
}

}  // namespace hexane::plan
