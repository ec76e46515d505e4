#include "run/program.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace hexane::run {
namespace {

// Calls visit(offset of an element in the space from the tensor's first byte) in row-major order. Rows that a ring
// no longer holds are those that took their place.
template <typename Visit>
void each_element(const PlanTensor& tensor, Visit visit) {
  int64_t index[PLAN_MAX_RANK] = {};
  int64_t offset = 0;
  for (uint32_t axis = 0; axis < tensor.rank; ++axis)
    if (tensor.shape[axis] == 0) return;
  for (;;) {
    visit(offset);
    int axis = static_cast<int>(tensor.rank) - 1;
    for (; axis >= 0; --axis) {
      const int64_t ring = axis == 1 ? tensor.ring : 0;
      offset += tensor.strides[axis];
      ++index[axis];
      if (ring && index[axis] % ring == 0) offset -= tensor.strides[axis] * ring;
      if (index[axis] < tensor.shape[axis]) break;
      offset -= tensor.strides[axis] * (ring ? tensor.shape[axis] % ring : tensor.shape[axis]);
      index[axis] = 0;
    }
    if (axis < 0) return;
  }
}

void unpack(const PlanTensor& tensor, size_t item, const std::byte* packed, std::byte* to) {
  each_element(tensor, [&](int64_t offset) {
    std::memcpy(to + offset, packed, item);
    packed += item;
  });
}

}  // namespace

Program::Program(const plan::Plan& plan, std::shared_ptr<const void> owner, int threads)
    : owner_(std::move(owner)),
      plan_(plan),
      threads_(std::clamp(threads, 1, ThreadPool::kMostThreads)),
      own_(plan.spaces.size()),
      bases_(plan.spaces.size()) {
  for (uint32_t space = 0; space < plan_.spaces.size(); ++space) allocate(space);
  executor_ = std::make_unique<cpu::Executor>(plan_, bases_, threads_);
}

void Program::allocate(uint32_t space) {
  const PlanSpace& row = plan_.spaces[space];
  const std::string_view kind = plan_.string(row.kind);
  if (kind == "port") return;
  if (kind == "weights") {
    bases_[space] = const_cast<std::byte*>(plan_.weights.data());
    if (reinterpret_cast<uintptr_t>(bases_[space]) % row.alignment) copy_weights();
    return;
  }
  own_[space] = Memory(row.bytes, std::string(plan_.string(row.name)));
  bases_[space] = own_[space].data();
  if (kind == "state")  // the rest is zero, and untouched until it is used
    std::copy(plan_.state.begin(), plan_.state.end(), bases_[space]);
}

std::byte* Program::copy_weights() {
  const uint32_t space = space_of("weights");
  own_[space] = Memory(plan_.weights.size(), "weights");
  std::copy(plan_.weights.begin(), plan_.weights.end(), own_[space].data());
  return bases_[space] = own_[space].data();
}

uint32_t Program::space_of(std::string_view kind) const {
  const auto found = std::find_if(plan_.spaces.begin(), plan_.spaces.end(),
                                  [&](const PlanSpace& space) { return plan_.string(space.kind) == kind; });
  return static_cast<uint32_t>(found - plan_.spaces.begin());
}

std::vector<cpu::Executor::StepInfo> Program::steps() {
  const std::lock_guard lock(running_);
  std::vector<cpu::Executor::StepInfo> result;
  for (size_t i = 0; i < executor_->num_steps(); ++i) result.push_back(executor_->step(i));
  return result;
}

void Program::resolve(const Ports& ports) {
  if (ports.id && ports.id == resolved_id_) return;
  const std::byte* const* address = ports.addresses.data();
  for (const auto side : {plan_.inputs, plan_.outputs})
    for (const PlanPort& port : side) {
      const uint32_t space = plan_.tensors[port.tensor].space;
      bases_[space] = const_cast<std::byte*>(*address++);
      executor_->set_base(space, bases_[space]);
    }
  resolved_id_ = ports.id;
}

void Program::run(const Ports& ports) {
  const std::lock_guard lock(running_);
  resolve(ports);
  executor_->run();
}

bool Program::try_run(const Ports& ports) {
  const std::unique_lock lock(running_, std::try_to_lock);
  if (!lock) return false;
  resolve(ports);
  executor_->run();
  return true;
}

void Program::trace(const Ports& ports, const std::function<void(size_t)>& after) {
  const std::lock_guard lock(running_);
  resolve(ports);
  executor_->run(after);
}

void Program::profile(bool on) {
  const std::lock_guard lock(running_);
  executor_->profile(on);
}

const PlanTensor& Program::find(std::string_view kind, std::string_view name) const {
  std::string names;
  for (const PlanTensor& tensor : plan_.tensors) {
    if (plan_.kind(tensor) != kind) continue;
    if (plan_.string(tensor.name) == name) return tensor;
    names += (names.empty() ? "" : ", ") + std::string(plan_.string(tensor.name));
  }
  fail("program", kind, ": got the name '", name, "', need one of ", names.empty() ? "none" : names);
}

void Program::read(const PlanTensor& tensor, std::byte* packed) const {
  const std::byte* from = bases_[tensor.space] + tensor.offset;
  const size_t item = static_cast<size_t>(info(plan_.dtype(tensor)).bits + 7) / 8;
  each_element(tensor, [&](int64_t offset) {
    std::memcpy(packed, from + offset, item);
    packed += item;
  });
}

void Program::read_state(const PlanTensor& tensor, std::byte* packed) {
  const std::lock_guard lock(running_);
  read(tensor, packed);
}

void Program::write_state(const PlanTensor& tensor, const std::byte* packed) {
  const std::lock_guard lock(running_);
  const size_t item = static_cast<size_t>(info(plan_.dtype(tensor)).bits + 7) / 8;
  unpack(tensor, item, packed, bases_[tensor.space] + tensor.offset);
}

void Program::reset_state() {
  const std::lock_guard lock(running_);
  const uint32_t space = space_of("state");
  if (space == plan_.spaces.size()) return;
  const auto rest = std::copy(plan_.state.begin(), plan_.state.end(), bases_[space]);
  std::fill(rest, bases_[space] + plan_.spaces[space].bytes, std::byte{});
}

void Program::update(const PlanTensor& weight, const std::byte* packed) {
  const std::lock_guard lock(running_);
  const uint64_t bytes = plan::extent_bytes(weight, plan_.dtype(weight));
  if (bytes == 0) return;
  if (own_[weight.space].size() == 0) {
    const std::byte* weights = copy_weights();
    executor_->set_base(weight.space, bases_[weight.space]);
    executor_->prepare(weights, weights + plan_.weights.size());
  }
  const size_t item = static_cast<size_t>(info(plan_.dtype(weight)).bits + 7) / 8;
  std::byte* to = bases_[weight.space] + weight.offset;
  const std::vector<std::byte> old(to, to + bytes);
  unpack(weight, item, packed, to);
  try {
    executor_->prepare(to, to + bytes);
  } catch (...) {  // a kernel refuses the values: everything as before
    std::copy(old.begin(), old.end(), to);
    executor_->prepare(to, to + bytes);
    throw;
  }
}

}  // namespace hexane::run
