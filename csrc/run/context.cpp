#include "run/context.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "run/elements.h"

namespace hexane::run {

std::shared_ptr<Context> Context::make(std::shared_ptr<Image> image, Context* like) {
  const std::shared_ptr<Context> context(new Context(std::move(image)));
  context->image_->add(context, like);
  return context;
}

Context::Context(std::shared_ptr<Image> image)
    : image_(std::move(image)),
      swaps_(image_->swaps()),
      calls_back_(image_->calls_back()),
      device_steps_(plan(), image_->programs(), swaps_),
      own_(plan().spaces.size()),
      bases_(plan().spaces.size()) {
  for (uint32_t space = 0; space < bases_.size(); ++space) allocate(space);
  const auto first = image_->first_contents();
  if (!first) fail("context", "got a model whose first contents have been dropped, need them");
  put_first_contents(*first, {"state", "param"});
  for (size_t i = 0; i < plan().inputs.size() + plan().outputs.size(); ++i) {
    const bool input = i < plan().inputs.size();
    const PlanPort& port = input ? plan().inputs[i] : plan().outputs[i - plan().inputs.size()];
    const PlanTensor& tensor = plan().tensors[port.tensor];
    if (surface(tensor)) copied_.push_back({i, surface(tensor).get(), device_steps_.layout(tensor), input});
  }
}

void Context::allocate(uint32_t space) {
  const PlanSpace& row = plan().spaces[space];
  const std::string_view kind = plan().string(row.kind);
  if (const auto& surface = device_steps_.surface(space)) {
    bases_[space] = surface->data();
    return;
  }
  if (kind == "port" || kind == "weights") return;
  own_[space] = Memory(row.bytes, std::string(plan().string(row.name)));
  bases_[space] = own_[space].data();
}

// Copies first contents into memory that is zero. Pages without contents are not touched, so the system need not
// provide them.
void Context::put_first_contents(const FirstContents& first, std::initializer_list<std::string_view> kinds) {
  for (const auto& block : first.blocks)
    if (std::find(kinds.begin(), kinds.end(), plan().string(plan().spaces[block.space].kind)) != kinds.end())
      std::memcpy(bases_[block.space] + block.offset, block.bytes.data(), block.bytes.size());
}

std::vector<std::pair<std::string_view, uint64_t>> Context::own_memory() const {
  std::vector<std::pair<std::string_view, uint64_t>> result;
  for (uint32_t space = 0; space < bases_.size(); ++space) {
    const auto& surface = device_steps_.surface(space);
    if (surface || own_[space].data())
      result.push_back({plan().string(plan().spaces[space].name), surface ? surface->bytes() : own_[space].size()});
  }
  result.push_back({"scratch", scratch_bytes()});
  return result;
}

uint64_t Context::bytes() const {
  uint64_t total = 0;
  for (const auto& [name, bytes] : own_memory()) total += bytes;
  return total;
}

std::vector<cpu::Profile::Times> Context::times() {
  const std::lock_guard lock(*running_);
  std::vector<cpu::Profile::Times> result(plan().steps.size());
  for (size_t i = 0; profile_ && i < result.size(); ++i) result[i] = profile_->of(i);
  return result;
}

std::vector<cpu::Profile::Span> Context::timeline() {
  const std::lock_guard lock(*running_);
  return profile_ ? profile_->timeline() : std::vector<cpu::Profile::Span>();
}

void Context::resolve(const Ports& ports) {
  const std::byte* const* address = ports.addresses.data();
  for (const auto side : {plan().inputs, plan().outputs})
    for (const PlanPort& port : side) {
      const uint32_t space = plan().tensors[port.tensor].space;
      const std::byte* const given = *address++;
      if (device_steps_.surface(space)) continue;
      bases_[space] = const_cast<std::byte*>(given);
      executor_->set_base(space, bases_[space]);
    }
  resolved_id_ = ports.id;
}

[[gnu::always_inline]] inline void Context::run_on(const Ports& ports, const cpu::Observer* observer) {
  if (!is_resolved(ports)) resolve(ports);
  const auto copy = [&](bool input, const auto& copy_one) {
    for (const Copied& port : copied_) {
      std::byte* const packed = ports.addresses[port.address];
      if (port.input == input && packed)
        copy_one(*port.surface, port.layout, device::all_channels(port.layout), port.layout.dtype, packed);
    }
  };
  copy(true, device::write);
  {
    std::optional<ForkMutex::Waiting> waiting;  // a fork under Python's lock would wait for a run that needs the lock
    if (calls_back_) waiting.emplace(*running_);
    executor_->run(observer);
  }
  copy(false, device::read);
  if (!swaps_.empty()) swap_states();
}

// Runs after a successful call: the results of the device's programs become the states.
void Context::swap_states() {
  for (const Swap& swap : swaps_) {
    std::swap(bases_[swap.state], bases_[swap.next]);
    executor_->set_base(swap.state, bases_[swap.state]);
    executor_->set_base(swap.next, bases_[swap.next]);
  }
  device_steps_.swap();
}

[[gnu::always_inline]] inline void Context::run_or_profile(const Ports& ports) {
  if (!profiling_) [[likely]]
    return run_on(ports, nullptr);
  profile_->begin_call();
  run_on(ports, &profiler_);
}

void Context::run(const Ports& ports) {
  const std::lock_guard lock(*running_);
  run_or_profile(ports);
}

bool Context::try_run(const Ports& ports) {
  const std::unique_lock lock(*running_, std::try_to_lock);
  if (!lock) return false;
  run_or_profile(ports);
  return true;
}

void Context::trace(const Ports& ports, const std::function<void(size_t)>& after) {
  const std::lock_guard lock(*running_);
  const cpu::Observer tracer{
      [&](const cpu::Ran& ran) {
        if (!ran.last) return;
        const ForkMutex::Waiting waiting(*running_);  // a tracer takes further locks, such as Python's
        after(ran.step);
      },
      false};
  run_on(ports, &tracer);
}

void Context::profile(bool on) {
  const std::lock_guard lock(*running_);
  if (on) {
    profile_ = std::make_unique<cpu::Profile>(plan().steps.size());
    profiler_.ran = [profile = profile_.get()](const cpu::Ran& ran) { profile->add(ran); };
  }
  profiling_ = on;
}

void Context::read(const PlanTensor& tensor, std::byte* packed) const {
  pack(plan(), tensor, bases_[tensor.space] + tensor.offset, packed);
}

void Context::replace(const PlanTensor& tensor, const std::byte* packed) {
  unpack(plan(), tensor, packed, bases_[tensor.space] + tensor.offset);
}

void Context::read_contents(const PlanTensor& tensor, std::byte* packed) {
  if (plan().kind(tensor) == "weights") {
    const std::lock_guard lock(image_->changing_);
    return pack(plan(), tensor, image_->weights_at(tensor.offset), packed);
  }
  const std::lock_guard lock(*running_);
  read(tensor, packed);
}

void Context::write_state(const PlanTensor& tensor, const std::byte* packed) {
  const std::lock_guard lock(*running_);
  overwrite(tensor, packed);
}

// Replaces the tensor's contents, and the packed copies that steps have made of them.
void Context::overwrite(const PlanTensor& tensor, const std::byte* packed) {
  std::byte* to = bases_[tensor.space] + tensor.offset;
  std::byte* end = to + plan::extent_bytes(tensor, plan().dtype(tensor));
  executor_->outdate(to, end);
  if (!executor_->prepares(to, end)) return unpack(plan(), tensor, packed, to);
  const std::vector<std::byte> old(to, end);
  unpack(plan(), tensor, packed, to);
  try {
    executor_->prepare(to, end);
  } catch (...) {  // a kernel refuses the values: restore the old values
    std::copy(old.begin(), old.end(), to);
    executor_->prepare(to, end);
    throw;
  }
}

void Context::share_states(std::shared_ptr<Context> other) {
  const auto rows = [](const plan::Plan& plan) {
    std::vector<std::string> found;
    for (const PlanTensor& tensor : plan.tensors)
      if (const std::string name(plan.string(tensor.name)); !name.empty() && plan.kind(tensor) == "state") {
        std::string row = name + " " + std::to_string(tensor.offset) + " " + std::string(plan.string(tensor.layout)) +
                          " " + std::string(info(plan.dtype(tensor)).name);
        for (uint32_t axis = 0; axis < tensor.rank; ++axis) row += " " + std::to_string(tensor.shape[axis]);
        found.push_back(std::move(row));
      }
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
  };
  const auto space_of = [](const plan::Plan& plan) {
    std::optional<uint32_t> found;
    for (uint32_t space = 0; space < plan.spaces.size(); ++space)
      if (plan.string(plan.spaces[space].kind) == "state") {
        if (found) fail("share_states", "got states in several memories, need one");
        found = space;
      }
    return found;
  };
  const auto here = space_of(plan()), there = space_of(other->plan());
  if (image_ == other->image_) fail("share_states", "got a context of the same plan, need another plan's");
  if (!here || !there || !swaps_.empty() || device_steps_.surface(*here) || other->device_steps_.surface(*there) ||
      rows(plan()) != rows(other->plan()) || plan().spaces[*here].bytes != other->plan().spaces[*there].bytes)
    fail("share_states", "got states that differ from the other function's, need the same names, types and places");
  const std::lock_guard lock(*other->running_);
  std::byte* const base = other->bases_[*there];
  if (executor_->prepares(bases_[*here], bases_[*here] + plan().spaces[*here].bytes) ||
      other->executor_->prepares(base, base + other->plan().spaces[*there].bytes))
    fail("share_states",
         "got a state that no step of a function writes, and that its kernels pack, need states that are written");
  executor_->outdate(bases_[*here], bases_[*here] + plan().spaces[*here].bytes);
  bases_[*here] = base;
  own_[*here] = Memory();
  executor_->set_base(*here, base);
  running_ = other->running_;
  states_of_ = std::move(other);
}

void Context::reset_state() {
  const auto first = image_->first_contents();
  if (!first) fail("reset_state", "got a program whose first contents have been dropped, need them");
  const std::lock_guard lock(*running_);
  const auto each = [&](const auto& visit) {
    for (uint32_t space = 0; space < bases_.size(); ++space)
      if (plan().string(plan().spaces[space].kind) == "state") visit(bases_[space], plan().spaces[space].bytes);
  };
  each([](std::byte* base, uint64_t bytes) { std::fill_n(base, bytes, std::byte{}); });
  put_first_contents(*first, {"state"});
  each([&](std::byte* base, uint64_t bytes) {
    executor_->outdate(base, base + bytes);
    executor_->prepare(base, base + bytes, true);
  });
}

// Returns the current contents of the plan's section "state": the spaces of states, and of params that a device
// touches.
Memory Context::copy_of_states() const {
  std::vector<Bytes> pieces;
  size_t size = 0;
  for (uint32_t space = 0; space < plan().spaces.size(); ++space) {
    const std::string_view kind = plan().string(plan().spaces[space].kind);
    if (kind != "state" && kind != "param") continue;
    pieces.emplace_back(bases_[space], plan().spaces[space].bytes);
    size += pieces.back().size();
  }
  Memory all(size, "state");
  std::byte* to = all.data();
  for (const Bytes piece : pieces) to = std::copy(piece.begin(), piece.end(), to);
  return all;
}

}  // namespace hexane::run
