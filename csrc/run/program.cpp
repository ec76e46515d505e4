#include "run/program.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/file.h"
#include "plan/writer.h"

namespace hexane::run {
namespace {

constexpr uintptr_t kWeightAlignment = 16;  // what weights that are used in place need; no element is larger

uint64_t space_bytes(const plan::Plan& plan, std::string_view kind) {
  for (const PlanSpace& space : plan.spaces)
    if (plan.string(space.kind) == kind) return space.bytes;
  return 0;
}

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

std::shared_ptr<Memory> copy_of(const std::byte* weights, uint64_t bytes) {
  auto copy = std::make_shared<Memory>(bytes, "weights");
  if (bytes) std::memcpy(copy->data(), weights, bytes);
  return copy;
}

}  // namespace

Program::Program(const plan::Plan& plan, std::shared_ptr<const void> owner, int threads)
    : owner_(std::move(owner)),
      plan_(plan),
      threads_(std::clamp(threads, 1, ThreadPool::kMostThreads)),
      arena_(space_bytes(plan, "arena"), "arena"),
      state_(space_bytes(plan, "state"), "state"),
      weights_(const_cast<std::byte*>(plan.weights.data())) {
  if (reinterpret_cast<uintptr_t>(weights_) % kWeightAlignment) {
    own_weights_ = copy_of(weights_, plan.weights.size());
    weights_ = own_weights_->data();
  }
  std::copy(plan_.state.begin(), plan_.state.end(), state_.data());  // the rest is zero, and untouched until it is used
  for (uint32_t space = 0; space < plan_.spaces.size(); ++space) bases_.push_back(base_of(space));
  executor_ = std::make_unique<cpu::Executor>(plan_, bases_, threads_);
}

std::byte* Program::base_of(uint32_t space) const {
  const std::string_view kind = plan_.string(plan_.spaces[space].kind);
  return kind == "arena" ? arena_.data() : kind == "state" ? state_.data() : kind == "weights" ? weights_ : nullptr;
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
  executor_->run([&](size_t step) {
    const ForkMutex::Waiting waiting(running_);  // a tracer takes locks of its own, Python's
    after(step);
  });
}

void Program::profile(bool on) {
  const std::lock_guard lock(running_);
  executor_->profile(on);
}

const PlanTensor& Program::find(std::string_view kind, std::string_view name) const {
  std::string names;
  for (const PlanTensor& tensor : plan_.tensors) {
    if (plan_.kind(tensor) != kind || plan_.string(tensor.name).empty()) continue;
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
  unpack(tensor, item, packed, state_.data() + tensor.offset);
}

void Program::reset_state() {
  const std::lock_guard lock(running_);
  const auto rest = std::copy(plan_.state.begin(), plan_.state.end(), state_.data());
  std::fill(rest, state_.data() + state_.size(), std::byte{});
}

// Makes the weights a copy of their own, which no save is reading.
void Program::own_weights(uint32_t space) {
  if (own_weights_.use_count() == 1) return;
  own_weights_ = copy_of(weights_, plan_.weights.size());
  bases_[space] = weights_ = own_weights_->data();
  executor_->set_base(space, weights_);
  executor_->prepare(weights_, weights_ + own_weights_->size());
}

void Program::update(const PlanTensor& weight, const std::byte* packed) {
  const std::lock_guard lock(running_);
  const uint64_t bytes = plan::extent_bytes(weight, plan_.dtype(weight));
  if (bytes == 0) return;
  own_weights(weight.space);
  const size_t item = static_cast<size_t>(info(plan_.dtype(weight)).bits + 7) / 8;
  std::byte* to = weights_ + weight.offset;
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

void Program::save(const std::string& path) {
  plan::Sections sections = plan::sections_of(plan_);
  const std::shared_ptr<Memory> weights = [&] {
    const std::lock_guard lock(running_);
    return own_weights_;
  }();
  if (weights) sections[plan::kWeights] = {weights->data(), weights->size()};
  save_file(path, plan::PlanFile(sections).pieces());
}

}  // namespace hexane::run
