#include "run/image.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "core/file.h"
#include "plan/blocks.h"
#include "plan/writer.h"
#include "run/context.h"
#include "run/elements.h"

namespace hexane::run {
namespace {

constexpr uint64_t kLargeBytes = 16 << 10;  // smaller constants are not worth a block of their own

uint64_t whole_lines(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

constexpr uintptr_t kWeightAlignment = 16;  // alignment of weights used in place; no element is larger

// Divides the weights into byte ranges that no tensor crosses, in order.
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

// Returns the address of the weights if they are in one piece, else null.
std::byte* in_one(std::span<const plan::Piece> pieces) {
  const bool is_one = pieces.size() == 1 && pieces.front().offset == 0;
  return is_one ? const_cast<std::byte*>(pieces.front().bytes.data()) : nullptr;
}

// Returns the address of the bytes [begin, end) if one piece has all of them, else null.
const std::byte* find_in(std::span<const plan::Piece> pieces, uint64_t begin, uint64_t end) {
  auto after = std::upper_bound(pieces.begin(), pieces.end(), begin,
                                [](uint64_t at, const plan::Piece& piece) { return at < piece.offset; });
  if (after == pieces.begin()) return nullptr;
  const plan::Piece& piece = *std::prev(after);
  return end <= piece.offset + piece.bytes.size() ? piece.bytes.data() + (begin - piece.offset) : nullptr;
}

// Returns the plan without the contents of states, which may be dropped.
plan::Plan without_contents(plan::Plan plan) {
  plan.state.clear();
  return plan;
}

}  // namespace

Image::Image(const plan::Plan& plan, std::shared_ptr<const void> owner, int threads, std::shared_ptr<MemoryPool> pool,
             std::span<const DeviceProgram> programs, std::span<const Swap> swaps,
             std::shared_ptr<const void> state_owner, bool packed_only)
    : owner_(std::move(owner)),
      pool_(std::move(pool)),
      plan_(without_contents(plan)),
      programs_(programs.begin(), programs.end()),
      swaps_(swaps.begin(), swaps.end()),
      calls_back_(std::any_of(programs.begin(), programs.end(),
                              [](const DeviceProgram& made) { return made.program->calls_back(); })),
      weights_(in_one(plan.weights)) {
  if (!plan_.blocks.empty()) {
    own_weights_ = std::make_shared<Memory>(plan::weights_space(plan_)->bytes, "weights");
    plan::unpack_weights(plan_, {own_weights_->data(), own_weights_->size()});
    weights_ = own_weights_->data();
  } else if (pool_ || !weights_) {
    place_weights();
  } else if (reinterpret_cast<uintptr_t>(weights_) % kWeightAlignment) {
    own_weights_ = copy_of_weights();
    weights_ = own_weights_->data();
  }
  find_first_contents(plan.state, std::move(state_owner));
  std::vector<uint32_t> changing;
  for (const Swap& swap : swaps_) changing.push_back(swap.state);
  std::vector<std::byte*> bases(plan_.spaces.size());
  first_constants_ = first_constants(bases);
  for (uint32_t space = 0; space < bases.size(); ++space)
    if (plan_.string(plan_.spaces[space].kind) == "weights") bases[space] = weights_;
  std::vector<cpu::ResolvedSteps::Piece> pieces;
  for (const WeightPiece& piece : pieces_) pieces.push_back({piece.offset, const_cast<std::byte*>(piece.data)});
  steps_ = std::make_unique<cpu::ResolvedSteps>(plan_, bases, pieces, pool_.get(), threads, changing);
  if (packed_only && pool_) drop_packed_weights();
  for (Memory& memory : first_constants_)
    if (memory.data() && !steps_->prepares(memory.data(), memory.data() + memory.size())) memory = Memory();
}

// Leaves out blocks that are all zero, such as an optimiser's initial moments. New memory is zero, and a page of it
// that nobody writes costs neither memory nor time.
void Image::find_first_contents(std::span<const plan::Piece> pieces, std::shared_ptr<const void> state_owner) {
  constexpr uint64_t kBlock = uint64_t{64} << 10;
  auto first = std::make_shared<FirstContents>();
  first->pieces.assign(pieces.begin(), pieces.end());
  first->owner = std::move(state_owner);
  uint64_t begin = 0;
  for (uint32_t space = 0; space < plan_.spaces.size(); ++space) {
    const std::string_view kind = plan_.string(plan_.spaces[space].kind);
    if (kind != "state" && kind != "param") continue;
    const uint64_t end = begin + plan_.spaces[space].bytes;
    for (const plan::Piece& piece : pieces) {
      const uint64_t last = std::min(end, piece.offset + piece.bytes.size());
      for (uint64_t at = std::max(begin, piece.offset); at < last; at += kBlock) {
        const Bytes block = piece.bytes.subspan(at - piece.offset, std::min(kBlock, last - at));
        if (block[0] == std::byte{} && std::memcmp(block.data(), block.data() + 1, block.size() - 1) == 0) continue;
        auto& blocks = first->blocks;
        if (!blocks.empty() && blocks.back().space == space &&
            blocks.back().offset + blocks.back().bytes.size() == at - begin &&
            blocks.back().bytes.data() + blocks.back().bytes.size() == block.data())
          blocks.back().bytes = {blocks.back().bytes.data(), blocks.back().bytes.size() + block.size()};
        else
          blocks.push_back({space, at - begin, block});
      }
    }
    begin = end;
  }
  first_contents_ = std::move(first);
}

// Returns copies of the first contents of params, and of states that no step writes, for steps that pack them. Bytes
// that a step writes are left out.
std::vector<Memory> Image::first_constants(std::span<std::byte*> bases) const {
  std::vector<Memory> result(plan_.spaces.size());
  const auto is_own = [&](const PlanSpace& space) {
    return plan_.string(space.kind) == "state" || plan_.string(space.kind) == "param";
  };
  if (std::none_of(plan_.spaces.begin(), plan_.spaces.end(), is_own)) return result;
  const std::vector<bool> constant = cpu::constant_tensors(plan_);
  for (size_t id = 0; id < constant.size(); ++id) {
    const PlanTensor& tensor = plan_.tensors[id];
    if (!constant[id] || !is_own(plan_.spaces[tensor.space])) continue;
    Memory& memory = result[tensor.space];
    if (!memory.data()) memory = Memory(plan_.spaces[tensor.space].bytes, std::string(plan_.kind(tensor)));
    bases[tensor.space] = memory.data();
    const uint64_t end = tensor.offset + plan::extent_bytes(tensor, plan_.dtype(tensor));
    for (const auto& block : first_contents_->blocks) {
      const uint64_t first = std::max(tensor.offset, block.offset);
      const uint64_t last = std::min(end, block.offset + block.bytes.size());
      if (block.space == tensor.space && first < last)
        std::memcpy(memory.data() + first, block.bytes.data() + (first - block.offset), last - first);
    }
  }
  return result;
}

// Large weights stay where they are, or go to the pool if there is one. Small weights, and unaligned ones without a
// pool, are copied to one block.
void Image::place_weights() {
  std::vector<size_t> copied;  // indices in pieces_
  uint64_t copied_bytes = 0;
  for (const auto& [begin, end] : connected_weights(plan_)) {
    const std::byte* there = find_in(plan_.weights, begin, end);
    const bool is_large = end - begin >= kLargeBytes;
    const bool is_aligned = there && (reinterpret_cast<uintptr_t>(there) - begin) % kWeightAlignment == 0;
    if (is_large && pool_) {
      std::vector<std::byte> joined(there ? 0 : end - begin);
      if (!there) plan::copy_pieces(plan_.weights, begin, joined);
      Block block = pool_->copy({there ? there : joined.data(), end - begin});
      pieces_.push_back({begin, end, block->data(), block});
    } else if (is_large && is_aligned) {
      pieces_.push_back({begin, end, there, nullptr});
    } else {
      copied.push_back(pieces_.size());
      copied_bytes += whole_lines(end - begin);
      pieces_.push_back({begin, end, nullptr, nullptr});
    }
  }
  const auto block = std::make_shared<Memory>(copied_bytes, "weights");
  std::byte* to = block->data();
  for (const size_t i : copied) {
    WeightPiece& piece = pieces_[i];
    plan::copy_pieces(plan_.weights, piece.offset, {to, piece.end - piece.offset});
    piece.data = to;
    piece.block = block;
    to += whole_lines(piece.end - piece.offset);
  }
  weights_ = nullptr;
}

void Image::drop_packed_weights() {
  for (uint32_t space = 0; space < plan_.spaces.size(); ++space) {
    if (plan_.string(plan_.spaces[space].kind) != "weights") continue;
    for (WeightPiece& piece : pieces_) {
      const uint64_t bytes = piece.end - piece.offset;
      if (bytes < kLargeBytes || !steps_->forget(space, piece.data, piece.data + bytes)) continue;
      piece.data = nullptr;
      piece.block = nullptr;
    }
  }
}

// Returns the bytes of a piece. Throws Error if they have been dropped.
const std::byte* Image::bytes_of(const WeightPiece& piece) {
  if (!piece.data) fail("program", "weights: got a program with packed weights only, need one that keeps its weights");
  return piece.data;
}

std::shared_ptr<Memory> Image::copy_of_weights() const {
  const PlanSpace* space = plan::weights_space(plan_);
  auto copy = std::make_shared<Memory>(space ? space->bytes : 0, "weights");
  if (weights_ && copy->size()) std::memcpy(copy->data(), weights_, copy->size());
  if (!weights_ && pool_)
    for (const WeightPiece& piece : pieces_)
      std::memcpy(copy->data() + piece.offset, bytes_of(piece), piece.end - piece.offset);
  if (!weights_ && !pool_) plan::copy_pieces(plan_.weights, 0, {copy->data(), copy->size()});
  return copy;
}

uint64_t Image::unshared_bytes() {
  // Estimate: the plan's tables, and the steps, operands and Python objects made from them, take 4 times the tables.
  constexpr uint64_t kRows = 4;
  uint64_t total = 0;
  for (const Bytes section : plan::sections_of(plan_)) total += kRows * section.size();
  total -= kRows * plan_.packed.size();
  std::vector<std::shared_ptr<Context>> contexts;  // destroyed after the mutex is released
  const std::lock_guard lock(changing_);
  for (const auto& each : contexts_)
    if (auto context = each.lock()) {
      total += context->bytes();
      contexts.push_back(std::move(context));
    }
  if (first_contents_)
    for (const plan::Piece& piece : first_contents_->pieces) total += piece.bytes.size();
  if (own_weights_) total += own_weights_->size();
  for (const WeightPiece& piece : pieces_)
    if (piece.end - piece.offset < kLargeBytes)
      total += piece.end - piece.offset;
    else if (piece.block && piece.block.use_count() == 1)
      total += 2 * piece.block->size();  // the piece, and about as much for its packed panels
  return total;
}

const PlanTensor& Image::find(std::string_view kind, std::string_view name) const {
  std::string names;
  for (const PlanTensor& tensor : plan_.tensors) {
    if (!is_kind(plan_, tensor, kind) || plan_.string(tensor.name).empty()) continue;
    if (plan_.string(tensor.name) == name) return tensor;
    names += (names.empty() ? "" : ", ") + std::string(plan_.string(tensor.name));
  }
  fail("program", kind, ": got the name '", name, "', need one of ", names.empty() ? "none" : names);
}

const std::byte* Image::weights_at(uint64_t offset) const {
  if (weights_) return weights_ + offset;
  for (const WeightPiece& piece : pieces_)
    if (piece.offset <= offset && offset < piece.end) return bytes_of(piece) + (offset - piece.offset);
  return nullptr;
}

// Holds the mutex of the image, and prevents runs of all its contexts, of one context or of none. The contexts are
// released last: the destructor of a context takes a mutex that a fork holds while it waits for the contexts.
class Image::Pause {
 public:
  explicit Pause(Image& image) {
    lock(image.changing_);
    for (const auto& each : image.contexts_)
      if (auto context = each.lock()) contexts_.push_back(std::move(context));
    for (const auto& context : contexts_) lock(*context->running_);
  }
  Pause(Image& image, Context* one) {  // the caller keeps `one` alive; null: no context
    lock(image.changing_);
    if (one) add(*one);
  }
  void add(Context& one) { lock(*one.running_); }
  ~Pause() {
    for (const auto& lock : locks_) lock->unlock();
  }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;
  std::span<const std::shared_ptr<Context>> contexts() const { return contexts_; }

 private:
  // A fork need not wait for the mutexes held so far, because nothing has changed yet.
  void lock(ForkMutex& mutex) {
    if (!mutex.try_lock()) {
      std::deque<ForkMutex::Waiting> waiting;
      for (ForkMutex* held : locks_) waiting.emplace_back(*held);
      mutex.lock();
    }
    locks_.push_back(&mutex);
  }

  std::vector<std::shared_ptr<Context>> contexts_;
  std::vector<ForkMutex*> locks_;
};

void Image::add(const std::shared_ptr<Context>& context, Context* like) {
  // A call of `like` may be running. This waits for the call only if updated params must be copied from `like`.
  Pause pause(*this, nullptr);
  if (like && params_updated_) pause.add(*like);
  context->executor_ = std::make_unique<cpu::Executor>(*steps_, context->bases_,
                                                       [&](size_t row) { return context->device_steps_.step(row); });
  if (like && params_updated_) copy_params(*like, *context);
  std::erase_if(contexts_, [](const std::weak_ptr<Context>& each) { return each.expired(); });
  contexts_.push_back(context);
}

void Image::copy_params(const Context& from, Context& to) const {
  for (uint32_t space = 0; space < plan_.spaces.size(); ++space) {
    if (plan_.string(plan_.spaces[space].kind) != "param") continue;
    const uint64_t bytes = plan_.spaces[space].bytes;
    std::copy_n(from.bases_[space], bytes, to.bases_[space]);
    to.executor_->prepare(to.bases_[space], to.bases_[space] + bytes);
  }
}

// Gives the image its own copy of the weights to overwrite. Copies again if a save still reads the present copy.
void Image::own_weights(uint32_t space) {
  updated_ = true;
  if (own_weights_.use_count() == 1) return;
  own_weights_ = copy_of_weights();
  weights_ = own_weights_->data();
  steps_->set_base(space, weights_);
  steps_->prepare(weights_, weights_ + own_weights_->size());
}

void Image::overwrite(const PlanTensor& weight, const std::byte* packed) {
  own_weights(weight.space);
  std::byte* to = weights_ + weight.offset;
  std::byte* end = to + plan::extent_bytes(weight, plan_.dtype(weight));
  if (!steps_->prepares(to, end)) return unpack(plan_, weight, packed, to);
  const std::vector<std::byte> old(to, end);
  unpack(plan_, weight, packed, to);
  try {
    steps_->prepare(to, end);
  } catch (...) {  // a kernel refuses the values: restore the old values
    std::copy(old.begin(), old.end(), to);
    steps_->prepare(to, end);
    throw;
  }
}

void Image::update(const PlanTensor& weight, const std::byte* packed) {
  const Pause pause(*this);
  const auto each = [&](const auto& visit) {
    for (const auto& context : pause.contexts()) visit(*context);
  };
  const uint64_t bytes = plan::extent_bytes(weight, plan_.dtype(weight));
  if (plan_.kind(weight) != "weights") {  // a param in a surface of each context
    params_updated_ = true;
    return each([&](Context& context) { context.overwrite(weight, packed); });
  }
  if (!bytes) return;
  const auto tell = [&] {
    const std::byte* at = weights_ + weight.offset;
    each([&](Context& context) {
      context.executor_->take_constants();
      context.executor_->outdate(at, at + bytes);
    });
  };
  try {
    overwrite(weight, packed);
  } catch (...) {
    tell();
    throw;
  }
  tell();
}

std::shared_ptr<const FirstContents> Image::first_contents() {
  const std::lock_guard lock(changing_);
  return first_contents_;
}

void Image::drop_first_contents() {
  std::shared_ptr<const FirstContents> dropped;
  {
    const std::lock_guard lock(changing_);
    dropped = std::move(first_contents_);
    first_contents_ = nullptr;
  }
  dropped.reset();
  give_back_free_memory();
}

void Image::save(const std::string& path, Context* states_now) {
  write(states_now, [&](std::span<const Bytes> pieces) { save_file(path, pieces); });
}

void Image::write(Context* states_now, const std::function<void(std::span<const Bytes>)>& write) {
  plan::Sections sections;
  std::shared_ptr<const FirstContents> first;  // kept alive during the write
  std::optional<Memory> states;
  const std::shared_ptr<Memory> weights = [&] {
    const Pause pause(*this, states_now);
    first = first_contents_;
    if (!states_now && !first) fail("save", "states: got 'initial', need 'now': the first contents have been dropped");
    sections = plan::sections_of(plan_);
    if (first) sections.state = first->pieces;
    if (states_now) states = states_now->copy_of_states();
    if (updated_) sections[plan::kBlocks] = sections[plan::kPacked] = {};
    return weights_ ? own_weights_ : pool_ ? copy_of_weights() : nullptr;
  }();
  if (weights) {
    sections.weights.clear();
    sections[plan::kWeights] = {weights->data(),
                                sections[plan::kBlocks].empty() ? weights->size() : plan::end_of(plan_.weights)};
  }
  if (states) sections.state = {{0, {states->data(), states->size()}}};
  write(plan::PlanFile(sections).pieces());
}

}  // namespace hexane::run
