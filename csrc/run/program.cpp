#include "run/program.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "core/file.h"
#include "plan/blocks.h"
#include "plan/writer.h"

namespace hexane::run {
namespace {

constexpr uint64_t kSharedBytes = 16 << 10;  // smaller constants are not worth a block of their own

uint64_t whole_lines(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

constexpr uintptr_t kWeightAlignment = 16;  // what weights that are used in place need; no element is larger

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

// Parts of the weights that no tensor connects, in order.
std::vector<std::pair<uint64_t, uint64_t>> connected_weights(const plan::Plan& plan) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const PlanTensor& tensor : plan.tensors)
    if (plan.kind(tensor) == "weights")
      if (const uint64_t bytes = plan::extent_bytes(tensor, plan.dtype(tensor)))
        ranges.push_back({tensor.offset, tensor.offset + bytes});
  std::sort(ranges.begin(), ranges.end());
  std::vector<std::pair<uint64_t, uint64_t>> result;
  for (const auto& [begin, end] : ranges)
    if (!result.empty() && begin < result.back().second)
      result.back().second = std::max(result.back().second, end);
    else
      result.push_back({begin, end});
  return result;
}

// Blocks that are all zero, as the moments of an optimiser begin, are left out: a page of new memory that nobody has
// written takes no memory and no time.
void put_over_zeros(Bytes from, std::byte* to) {
  constexpr size_t kBlock = size_t{64} << 10;
  for (size_t at = 0; at < from.size(); at += kBlock) {
    const Bytes block = from.subspan(at, std::min(kBlock, from.size() - at));
    const bool is_zero = block[0] == std::byte{} && std::memcmp(block.data(), block.data() + 1, block.size() - 1) == 0;
    if (!is_zero) std::memcpy(to + at, block.data(), block.size());
  }
}

}  // namespace

Program::Program(const plan::Plan& plan, std::shared_ptr<const void> owner, int threads,
                 std::shared_ptr<MemoryPool> pool, std::span<const DeviceProgram> programs, std::span<const Swap> swaps,
                 std::shared_ptr<const void> state_owner)
    : owner_(std::move(owner)),
      pool_(std::move(pool)),
      state_owner_(std::move(state_owner)),
      plan_(plan),
      threads_(std::clamp(threads, 1, ThreadPool::kMostThreads)),
      device_steps_(plan, programs, swaps),
      swaps_(swaps.begin(), swaps.end()),
      calls_back_(std::any_of(programs.begin(), programs.end(),
                              [](const DeviceProgram& made) { return made.program->calls_back(); })),
      own_(plan.spaces.size()),
      weights_(const_cast<std::byte*>(plan.weights.data())),
      bases_(plan.spaces.size()) {
  if (!plan_.blocks.empty()) {
    own_weights_ = std::make_shared<Memory>(plan::weights_space(plan_)->bytes, "weights");
    plan::unpack_weights(plan_, {own_weights_->data(), own_weights_->size()});
    weights_ = own_weights_->data();
  } else if (pool_) {
    share_weights();
  } else if (reinterpret_cast<uintptr_t>(weights_) % kWeightAlignment) {
    own_weights_ = copy_of_weights();
    weights_ = own_weights_->data();
  }
  for (uint32_t space = 0; space < plan_.spaces.size(); ++space) allocate(space);
  put_first_contents({"state", "param"});
  for (size_t i = 0; i < plan_.inputs.size() + plan_.outputs.size(); ++i) {
    const bool input = i < plan_.inputs.size();
    const PlanPort& port = input ? plan_.inputs[i] : plan_.outputs[i - plan_.inputs.size()];
    const PlanTensor& tensor = plan_.tensors[port.tensor];
    if (surface(tensor)) copied_.push_back({i, surface(tensor).get(), device_steps_.layout(tensor), input});
  }
  std::vector<cpu::Executor::Piece> pieces;
  for (const SharedPiece& piece : pieces_) pieces.push_back({piece.offset, piece.block->data() + piece.begin});
  std::vector<uint32_t> changing;
  for (const Swap& swap : swaps_) changing.push_back(swap.state);
  executor_ = std::make_unique<cpu::Executor>(
      plan_, bases_, pieces, pool_.get(), threads_, [this](size_t row) { return device_steps_.step(row); }, changing);
}

void Program::share_weights() {
  const auto parts = connected_weights(plan_);
  uint64_t small_bytes = 0;
  for (const auto& [begin, end] : parts)
    if (end - begin < kSharedBytes) small_bytes += whole_lines(end - begin);
  auto small = std::make_shared<Memory>(small_bytes, "weights");
  uint64_t at = 0;
  for (const auto& [begin, end] : parts) {
    const Bytes bytes = plan_.weights.subspan(begin, end - begin);
    if (bytes.size() >= kSharedBytes) {
      pieces_.push_back({begin, end, pool_->copy(bytes), 0});
      continue;
    }
    std::memcpy(small->data() + at, bytes.data(), bytes.size());
    pieces_.push_back({begin, end, small, at});
    at += whole_lines(bytes.size());
  }
  weights_ = nullptr;
}

std::shared_ptr<Memory> Program::copy_of_weights() const {
  const PlanSpace* space = plan::weights_space(plan_);
  auto copy = std::make_shared<Memory>(space ? space->bytes : 0, "weights");
  if (weights_ && copy->size()) std::memcpy(copy->data(), weights_, copy->size());
  if (!weights_)
    for (const SharedPiece& piece : pieces_)
      std::memcpy(copy->data() + piece.offset, piece.block->data() + piece.begin, piece.end - piece.offset);
  return copy;
}

uint64_t Program::unshared_bytes() {
  constexpr uint64_t kRows = 4;  // steps and operands beside the rows they are made from, and what Python keeps
  uint64_t total = scratch_bytes();
  for (const Memory& memory : own_) total += memory.size();
  for (uint32_t space = 0; space < plan_.spaces.size(); ++space)
    if (const auto& surface = device_steps_.surface(space)) total += surface->bytes();
  for (const Bytes section : plan::sections_of(plan_)) total += kRows * section.size();
  total -= kRows * (plan_.weights.size() + plan_.packed.size());
  const std::lock_guard lock(running_);
  for (const plan::Piece& piece : plan_.state) total += piece.bytes.size();
  if (own_weights_) total += own_weights_->size();
  for (const SharedPiece& piece : pieces_)
    if (piece.end - piece.offset < kSharedBytes)
      total += piece.end - piece.offset;
    else if (piece.block.use_count() == 1)
      total += 2 * piece.block->size();  // what is packed of it as well
  return total;
}

void Program::allocate(uint32_t space) {
  const PlanSpace& row = plan_.spaces[space];
  const std::string_view kind = plan_.string(row.kind);
  if (const auto& surface = device_steps_.surface(space)) {
    bases_[space] = surface->data();
    return;
  }
  if (kind == "port") return;
  if (kind == "weights") {
    bases_[space] = weights_;
    return;
  }
  own_[space] = Memory(row.bytes, std::string(plan_.string(row.name)));
  bases_[space] = own_[space].data();
}

// Of memory that is zero: what lies behind them, in new memory, stays untouched until it is used.
void Program::put_first_contents(std::initializer_list<std::string_view> kinds) {
  uint64_t begin = 0;
  for (uint32_t space = 0; space < plan_.spaces.size(); ++space) {
    const std::string_view kind = plan_.string(plan_.spaces[space].kind);
    if (kind != "state" && kind != "param") continue;
    const uint64_t end = begin + plan_.spaces[space].bytes;
    if (std::find(kinds.begin(), kinds.end(), kind) != kinds.end())
      for (const plan::Piece& piece : plan_.state) {
        const uint64_t first = std::max(begin, piece.offset), last = std::min(end, piece.offset + piece.bytes.size());
        if (first < last)
          put_over_zeros(piece.bytes.subspan(first - piece.offset, last - first), bases_[space] + (first - begin));
      }
    begin = end;
  }
}

std::vector<cpu::Executor::StepInfo> Program::steps() {
  const std::lock_guard lock(running_);
  std::vector<cpu::Executor::StepInfo> result;
  for (size_t i = 0; i < executor_->num_steps(); ++i) result.push_back(executor_->step(i));
  return result;
}

std::vector<cpu::Executor::Span> Program::timeline() {
  const std::lock_guard lock(running_);
  return executor_->timeline();
}

void Program::resolve(const Ports& ports) {
  const std::byte* const* address = ports.addresses.data();
  for (const auto side : {plan_.inputs, plan_.outputs})
    for (const PlanPort& port : side) {
      const uint32_t space = plan_.tensors[port.tensor].space;
      const std::byte* const given = *address++;
      if (device_steps_.surface(space)) continue;
      bases_[space] = const_cast<std::byte*>(given);
      executor_->set_base(space, bases_[space]);
    }
  resolved_id_ = ports.id;
}

template <typename Run>
void Program::run_on(const Ports& ports, Run run) {
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
    if (calls_back_) waiting.emplace(running_);
    run();
  }
  copy(false, device::read);
  if (!swaps_.empty()) swap_states();
}

// After a call that has ended well: what its programs have computed of each state is the state from now on.
void Program::swap_states() {
  for (const Swap& swap : swaps_) {
    std::swap(bases_[swap.state], bases_[swap.next]);
    executor_->set_base(swap.state, bases_[swap.state]);
    executor_->set_base(swap.next, bases_[swap.next]);
  }
  device_steps_.swap();
}

void Program::run(const Ports& ports) {
  const std::lock_guard lock(running_);
  run_on(ports, [&] { executor_->run(); });
}

bool Program::try_run(const Ports& ports) {
  const std::unique_lock lock(running_, std::try_to_lock);
  if (!lock) return false;
  run_on(ports, [&] { executor_->run(); });
  return true;
}

void Program::trace(const Ports& ports, const std::function<void(size_t)>& after) {
  const std::lock_guard lock(running_);
  run_on(ports, [&] {
    executor_->run([&](size_t step) {
      const ForkMutex::Waiting waiting(running_);  // a tracer takes locks of its own, Python's
      after(step);
    });
  });
}

void Program::profile(bool on) {
  const std::lock_guard lock(running_);
  executor_->profile(on);
}

const PlanTensor& Program::find(std::string_view kind, std::string_view name) const {
  std::string names;
  for (const PlanTensor& tensor : plan_.tensors) {
    if (!is_kind(plan_, tensor, kind) || plan_.string(tensor.name).empty()) continue;
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

void Program::replace(const PlanTensor& tensor, const std::byte* packed) {
  const size_t item = static_cast<size_t>(info(plan_.dtype(tensor)).bits + 7) / 8;
  unpack(tensor, item, packed, bases_[tensor.space] + tensor.offset);
}

void Program::read_contents(const PlanTensor& tensor, std::byte* packed) {
  const std::lock_guard lock(running_);
  read(tensor, packed);
}

void Program::write_state(const PlanTensor& tensor, const std::byte* packed) {
  const std::lock_guard lock(running_);
  overwrite(tensor, packed);
}

// Replaces the tensor's contents, and what steps have prepared of them.
void Program::overwrite(const PlanTensor& tensor, const std::byte* packed) {
  const size_t item = static_cast<size_t>(info(plan_.dtype(tensor)).bits + 7) / 8;
  std::byte* to = bases_[tensor.space] + tensor.offset;
  std::byte* end = to + plan::extent_bytes(tensor, plan_.dtype(tensor));
  executor_->outdate(to, end);
  if (!executor_->prepares(to, end)) return unpack(tensor, item, packed, to);
  const std::vector<std::byte> old(to, end);
  unpack(tensor, item, packed, to);
  try {
    executor_->prepare(to, end);
  } catch (...) {  // a kernel refuses the values: everything as before
    std::copy(old.begin(), old.end(), to);
    executor_->prepare(to, end);
    throw;
  }
}

void Program::drop_first_contents() {
  {
    const std::lock_guard lock(running_);
    plan_.state.clear();
    state_owner_.reset();
    has_first_contents_ = false;
  }
  give_back_free_memory();
}

void Program::reset_state() {
  const std::lock_guard lock(running_);
  if (!has_first_contents_) fail("reset_state", "got a program whose first contents have been dropped, need them");
  const auto each = [&](const auto& visit) {
    for (uint32_t space = 0; space < plan_.spaces.size(); ++space)
      if (plan_.string(plan_.spaces[space].kind) == "state") visit(bases_[space], plan_.spaces[space].bytes);
  };
  each([](std::byte* base, uint64_t bytes) { std::fill_n(base, bytes, std::byte{}); });
  put_first_contents({"state"});
  each([&](std::byte* base, uint64_t bytes) {
    executor_->outdate(base, base + bytes);
    executor_->prepare(base, base + bytes);
  });
}

// Makes the weights a copy of their own, which no save is reading.
void Program::own_weights(uint32_t space) {
  updated_ = true;
  if (own_weights_.use_count() == 1) return;
  own_weights_ = copy_of_weights();
  bases_[space] = weights_ = own_weights_->data();
  executor_->set_base(space, weights_);
  executor_->prepare(weights_, weights_ + own_weights_->size());
}

void Program::update(const PlanTensor& weight, const std::byte* packed) {
  const std::lock_guard lock(running_);
  if (plan_.kind(weight) == "weights" && plan::extent_bytes(weight, plan_.dtype(weight))) own_weights(weight.space);
  overwrite(weight, packed);
}

// What section "state" of the plan holds, as it is now: the spaces of states and of params that a device touches.
Memory Program::copy_of_states() const {
  std::vector<Bytes> pieces;
  size_t size = 0;
  for (uint32_t space = 0; space < plan_.spaces.size(); ++space) {
    const std::string_view kind = plan_.string(plan_.spaces[space].kind);
    if (kind != "state" && kind != "param") continue;
    pieces.emplace_back(bases_[space], plan_.spaces[space].bytes);
    size += pieces.back().size();
  }
  Memory all(size, "state");
  std::byte* to = all.data();
  for (const Bytes piece : pieces) to = std::copy(piece.begin(), piece.end(), to);
  return all;
}

void Program::save(const std::string& path, bool states_now) {
  plan::Sections sections;
  std::shared_ptr<const void> first_contents;  // while they are written
  std::optional<Memory> states;
  const std::shared_ptr<Memory> weights = [&] {
    const std::lock_guard lock(running_);
    if (!states_now && !has_first_contents_)
      fail("save", "states: got 'initial', need 'now': the first contents have been dropped");
    sections = plan::sections_of(plan_);
    first_contents = state_owner_;
    if (states_now) states = copy_of_states();
    if (updated_) sections[plan::kBlocks] = sections[plan::kPacked] = {};
    return weights_ ? own_weights_ : copy_of_weights();
  }();
  if (weights)
    sections[plan::kWeights] = {weights->data(),
                                sections[plan::kBlocks].empty() ? weights->size() : plan_.weights.size()};
  if (states) sections.state = {{0, {states->data(), states->size()}}};
  save_file(path, plan::PlanFile(sections).pieces());
}

}  // namespace hexane::run
