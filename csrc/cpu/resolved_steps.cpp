#include "cpu/resolved_steps.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "cpu/attributes.h"
#include "cpu/rings.h"
#include "cpu/row_order.h"

namespace hexane::cpu {
namespace {

constexpr int64_t kParallelCost = 5000;         // Nanoseconds; waking threads for less work costs more than they save.
constexpr int64_t kChunkCost = 4000;            // Nanoseconds; smaller pieces slow kernels down more than threads gain.
constexpr int64_t kParallelRun = 25000;         // Nanoseconds; less work ends before a sleeping thread has woken up.
constexpr uint64_t kParallelWeights = 1 << 20;  // Bytes of weights from which on threads share the preparation.
constexpr int64_t kMostCost = int64_t{1} << 50;
constexpr uint64_t kLine = 64;

uint64_t whole_lines(uint64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

int64_t item_bytes(const Tensor& tensor) { return (info(tensor.dtype).bits + 7) / 8; }

// True if a kernel accepts the strides: "strided", "rows" (innermost axis dense) or "dense" (no gaps).
bool accepted(const Tensor& tensor, std::string_view accepts) {
  int64_t stride = item_bytes(tensor);
  if (accepts == "strided" || tensor.size() == 0) return true;
  for (int axis = tensor.rank - 1; axis >= 0; --axis) {
    if (tensor.shape[axis] != 1 && tensor.strides[axis] != stride) return false;
    if (accepts == "rows") return true;
    stride *= tensor.shape[axis];
  }
  return true;
}

// Returns the cost of a kernel without cost(): the time to move its operands' bytes at about the speed of memory.
int64_t default_cost(const Call& call) {
  int64_t bytes = 0;
  for (const auto side : {call.inputs, call.outputs})
    for (const Tensor& tensor : side)
      if (tensor.present()) bytes += tensor.size() * item_bytes(tensor);
  return bytes / 8;
}

uint64_t checked_scratch(const std::string& where, int64_t bytes) {
  if (bytes < 0 || bytes > static_cast<int64_t>(kMaxBytes))
    fail(where, "scratch: got ", bytes, " bytes, need at most ", kMaxBytes);
  return whole_lines(static_cast<uint64_t>(bytes));
}

// Returns a key that is equal for calls of one plan whose prepare() gives equal results. Calls with equal keys differ
// at most in the addresses of data that changes.
std::string likeness(const PlanStep& row, const Call& call, std::span<const std::byte> attrs) {
  std::string key;
  const auto add = [&](const auto* data, size_t count) {
    key.append(reinterpret_cast<const char*>(data), count * sizeof(*data));
  };
  const uint64_t names[] = {row.kernel, row.numerics, row.num_inputs, row.num_outputs};
  add(names, std::size(names));
  add(attrs.data(), attrs.size());
  for (const auto side : {call.inputs, call.outputs})
    for (const Tensor& tensor : side) {
      const std::byte* constant = tensor.constant ? tensor.data : nullptr;
      const int64_t fields[] = {tensor.rank, static_cast<int64_t>(tensor.dtype), tensor.constant, tensor.ring};
      add(fields, std::size(fields));
      add(&constant, 1);
      if (!tensor.present()) continue;
      add(tensor.shape, static_cast<size_t>(tensor.rank));
      add(tensor.strides, static_cast<size_t>(tensor.rank));
    }
  return key;
}

// Returns a placeholder address for a space that an executor owns. Kernels may compare the placeholder with other
// addresses, but must not read from it.
std::byte* nowhere(uint32_t space) { return reinterpret_cast<std::byte*>((uintptr_t{space} + 1) << 44); }

}  // namespace

std::vector<bool> constant_tensors(const plan::Plan& plan) {
  std::vector<const PlanTensor*> written;
  for (const PlanStep& row : plan.steps)
    for (const uint32_t id : plan.operands.subspan(row.operands + row.num_inputs, row.num_outputs))
      if (id != PLAN_ABSENT && plan.kind(plan.tensors[id]) == "state") written.push_back(&plan.tensors[id]);
  const auto end = [&](const PlanTensor& tensor) {
    return tensor.offset + plan::extent_bytes(tensor, plan.dtype(tensor));
  };
  std::vector<bool> result;
  for (const PlanTensor& tensor : plan.tensors) {
    const auto overlaps = [&](const PlanTensor* other) {
      return tensor.space == other->space && tensor.offset < end(*other) && other->offset < end(tensor);
    };
    const std::string_view kind = plan.kind(tensor);
    result.push_back(kind == "weights" || kind == "param" ||
                     (kind == "state" && std::none_of(written.begin(), written.end(), overlaps)));
  }
  return result;
}

int64_t extent_bytes(const Tensor& tensor) {
  int64_t last = item_bytes(tensor);
  for (int axis = 0; axis < tensor.rank; ++axis) last += (tensor.shape[axis] - 1) * tensor.strides[axis];
  return tensor.size() ? last : 0;
}

bool reads_constants(const Step& step, const Call& call, const std::byte* begin, const std::byte* end) {
  return step.kernel->prepare && std::any_of(call.inputs.begin(), call.inputs.end(), [&](const Tensor& t) {
           return t.constant && t.data < end && t.data + extent_bytes(t) > begin;
         });
}

ResolvedSteps::ResolvedSteps(const plan::Plan& plan, std::span<std::byte* const> bases, std::span<const Piece> pieces,
                             MemoryPool* pool, int threads, std::span<const uint32_t> changing, int depth)
    : plan_(plan),
      threads_(std::clamp(threads, 1, ThreadPool::kMostThreads)),
      depth_(depth),
      in_space_(plan.spaces.size()) {
  size_t count = 0;
  for (const PlanStep& row : plan_.steps) count += size_t{row.num_inputs} + row.num_outputs;
  operands_.reserve(count);
  std::vector<bool> constant = constant_tensors(plan_);
  for (size_t id = 0; id < constant.size(); ++id)
    if (std::find(changing.begin(), changing.end(), plan_.tensors[id].space) != changing.end()) constant[id] = false;
  for (const PlanStep& row : plan_.steps)
    for (size_t i = 0; i < size_t{row.num_inputs} + row.num_outputs; ++i) {
      const uint32_t id = plan_.operands[row.operands + i];
      if (id == PLAN_ABSENT) {
        operands_.push_back({nullptr, DType::kBool, -1, false, 0, nullptr, nullptr});
        continue;
      }
      const PlanTensor& tensor = plan_.tensors[id];
      in_space_[tensor.space].push_back({operands_.size(), tensor.offset});
      operands_.push_back({nullptr, plan_.dtype(tensor), static_cast<int>(tensor.rank), constant[id], tensor.ring,
                           tensor.shape, tensor.strides});
    }
  for (uint32_t space = 0; space < bases.size(); ++space) {
    const bool in_pieces = !pieces.empty() && plan_.string(plan_.spaces[space].kind) == "weights";
    if (in_pieces)
      place_in(pieces, space);
    else
      set_base(space, bases[space] ? bases[space] : nowhere(space));
  }
  resolve_all(pool);
  resolve_elsewhere();
  find_what_runs_beside();
  find_what_is_kept(changing);
  if (!plan_.loops.empty()) {
    check_loops();
    unroll_loops();
  }
  int64_t shared_cost = 0;
  for (const Step& step : steps_)
    if (step.chunk) shared_cost = std::min(shared_cost + step.cost, kMostCost);
  any_parallel_ = shared_cost >= kParallelRun;
  for (Step& step : steps_) {
    if (!any_parallel_) step.chunk = 0;
    const bool alone = step.kept < 0 && step.outdates.empty() && !step.elsewhere && !step.waits &&
                       !(step.kernel && step.kernel->runs_steps);
    step.plain = alone && !step.empty && !step.begins && step.moving.empty() && !step.chunk;
    cost_ = std::min(cost_ + step.cost, kMostCost);
    const uint64_t users = step.chunk ? static_cast<uint64_t>(threads_) : 1;
    scratch_bytes_ = std::max(scratch_bytes_, step.shared_bytes + users * step.scratch_bytes);
  }
  copy_moving();
}

// Resolves all steps, in several threads because packing weights takes time. Equal calls, such as the time steps of a
// recurrent network, share prepared data. Throws the error of the first step that fails.
void ResolvedSteps::resolve_all(MemoryPool* pool) {
  steps_.resize(plan_.steps.size());
  calls_.resize(steps_.size());
  prepared_.resize(steps_.size());
  for (const PlanLoop& loop : plan::outer_loops(plan_))
    for (size_t i = 0; i < loop.num_steps; ++i) steps_[loop.first_step + i].in_loop = true;
  size_t first_operand = 0;
  for (size_t i = 0; i < steps_.size(); ++i) {
    const PlanStep& row = plan_.steps[i];
    const PlanNumerics& numerics = plan_.numerics[row.numerics];
    const Tensor* operands = operands_.data() + first_operand;
    steps_[i].row = &row;
    steps_[i].operands = first_operand;
    steps_[i].waited = i + 1;
    calls_[i] = {{operands, row.num_inputs},
                 {operands + row.num_inputs, row.num_outputs},
                 plan_.attrs.data() + row.attrs,
                 plan_.string(0).data(),
                 nullptr,
                 numerics.bytes ? plan_.attrs.data() + numerics.offset : nullptr,
                 pool,
                 false,
                 threads_,
                 depth_};
    first_operand += size_t{row.num_inputs} + row.num_outputs;
  }
  std::unordered_map<std::string, size_t> first;
  std::vector<size_t> like(steps_.size());  // by step: the first step with an equal key
  for (size_t i = 0; i < steps_.size(); ++i) {
    const PlanStep& row = plan_.steps[i];
    const auto attrs = plan_.attrs.subspan(row.attrs, row.attrs_bytes);
    like[i] = first.try_emplace(likeness(row, calls_[i], attrs), i).first->second;
  }
  std::vector<std::exception_ptr> errors(steps_.size());
  const auto try_resolve = [&](size_t i) {
    if (plan_.string(plan_.steps[i].device) != "cpu") return;
    try {
      resolve(i, prepared_[like[i]]);
    } catch (...) {
      errors[i] = std::current_exception();
    }
  };
  std::atomic<size_t> next{0};
  auto work = [&](int) {
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < steps_.size();)
      if (like[i] == i) try_resolve(i);
  };
  const bool worth_it = plan::end_of(plan_.weights) >= kParallelWeights;
  const auto lease = worth_it ? ThreadPool::of_process().try_lease(threads_) : ThreadPool::Lease();
  if (lease)
    lease.run(work);
  else
    work(0);
  for (size_t i = 0; i < steps_.size(); ++i)
    if (like[i] != i) try_resolve(i);
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

std::string ResolvedSteps::place(const Step& step) const {
  const std::string_view source = plan_.string(step.row->source);
  return " (step " + std::to_string(step.row - plan_.steps.data()) + ", " +
         std::string(plan_.string(step.row->kernel)) + (source.empty() ? "" : ", ") + std::string(source) + ")";
}

void ResolvedSteps::resolve(size_t index, Prepared prepared) {
  Step& step = steps_[index];
  Call& call = calls_[index];
  const PlanStep& row = *step.row;
  try {
    const Kernel& kernel =
        find_kernel(plan_.string(row.kernel), plan_.string(plan_.numerics[row.numerics].family), call);
    step.kernel = &kernel;
    check_attributes(kernel.name, kernel, plan_.attrs.subspan(row.attrs, row.attrs_bytes), plan_.strings,
                     row.num_inputs);
    for (size_t i = 0; i < size_t{row.num_inputs} + row.num_outputs; ++i) {
      const Tensor& tensor = call.inputs.data()[i];  // the outputs follow
      if (!tensor.present()) continue;
      if (!accepted(tensor, kernel.accepts))
        fail(kernel.name, "operand ", i, ": got strides that are not ", kernel.accepts);
    }
    prepared_[index] = prepared || !kernel.prepare ? std::move(prepared) : kernel.prepare(call);
    call.prepared = prepared_[index].get();
    plan_work(step, call);
  } catch (const Error& error) {
    throw Error(error.what() + place(step));
  }
}

// Decides the range of a step, and whether threads share it. Threads divide the range along the first axis that has
// at least as many pieces as there are threads. If there is none, they take the axis with the most pieces.
void ResolvedSteps::plan_work(Step& step, const Call& call) const {
  const Kernel& kernel = *step.kernel;
  step.empty = std::all_of(call.outputs.begin(), call.outputs.end(), [](const Tensor& t) { return t.size() == 0; });
  step.cost = step.empty ? 0 : std::clamp<int64_t>((kernel.cost ? kernel.cost : default_cost)(call), 0, kMostCost);
  step.shared_bytes = kernel.shared_scratch ? checked_scratch(kernel.name, kernel.shared_scratch(call)) : 0;
  step.begins = kernel.begin && step.shared_bytes != 0;  // begin() fills the shared bytes, if any
  step.scratch_bytes = kernel.scratch ? checked_scratch(kernel.name, kernel.scratch(call)) : 0;
  Cuts cuts;
  if (kernel.cuts) kernel.cuts(call, cuts);
  step.axis = -1;
  step.rings = has_rings(call);
  step.moving = rings_to_move(kernel, call);
  if (step.rings && step.row->cut_axis != 1)
    fail(kernel.name, "cut: got axis ", step.row->cut_axis, ", need 1 for rings");
  if (cuts.count == 0) {
    if (step.row->cut_axis >= 0) fail(kernel.name, "cut: got axis ", step.row->cut_axis, ", need none");
    return;
  }
  const auto grains = [](const Cut& cut) { return (cut.extent + cut.grain - 1) / cut.grain; };
  const Cut* chosen = &cuts.items[0];
  if (step.row->cut_axis >= 0) {
    const Cut* end = cuts.items + cuts.count;
    chosen = std::find_if(chosen, end, [&](const Cut& cut) { return cut.axis == step.row->cut_axis; });
    if (chosen == end) fail(kernel.name, "cut: got axis ", step.row->cut_axis, ", need one along which it can be cut");
    step.range = {step.row->begin, step.row->end};
    if (!step.in_loop) check_range(step, step.range);
  } else {
    for (int i = 0; i < cuts.count && grains(*chosen) < threads_; ++i)
      if (grains(cuts.items[i]) > grains(*chosen)) chosen = &cuts.items[i];
    step.range = {0, chosen->extent};
  }
  step.axis = chosen->axis;
  const int64_t pieces = grains({step.axis, step.range.end - step.range.begin, chosen->grain});
  int64_t cost = step.cost;  // cost of one run
  if (step.in_loop) cost = cost / chosen->extent * std::min(step.range.end - step.range.begin, chosen->extent);
  if (threads_ == 1 || pieces < 2 || cost < kParallelCost || kernel.in_order) return;
  const int64_t chunks = std::min({pieces, int64_t{4} * threads_, std::max<int64_t>(threads_, cost / kChunkCost)});
  step.chunk = (pieces + chunks - 1) / chunks * chosen->grain;
}

// Throws Error unless the step's kernel can run on this range of its cut axis.
void ResolvedSteps::check_range(const Step& step, Range range) const {
  const Kernel& kernel = *step.kernel;
  Cuts cuts;
  kernel.cuts(call(step), cuts);
  const Cut* cut = cuts.items;
  while (cut->axis != step.row->cut_axis) ++cut;
  if (range.end > cut->extent || range.begin % cut->grain || (range.end % cut->grain && range.end != cut->extent))
    fail(kernel.name, "cut: got [", range.begin, ", ", range.end, "), need multiples of ", cut->grain, " up to ",
         cut->extent);
  if (step.rings) check_rings(kernel, call(step), range);
  if (kernel.in_order && !step.in_loop && range.begin != 0)
    fail(kernel.name, "cut: got [", range.begin, ", ", range.end, ") outside of a loop, need it from 0 on");
}

void ResolvedSteps::check_loops() const {
  for (const PlanLoop& loop : plan::outer_loops(plan_)) {
    const size_t end = size_t{loop.first_step} + loop.num_steps;
    RowOrder order(plan_, loop.first_step, end);
    for (const plan::Run& run : plan::unroll(plan_, loop.first_step, end)) {
      const Step& step = steps_[run.step];
      if (step.empty) continue;
      try {
        check_range(step, {run.begin, run.end});
        order.run(step.kernel->name, *step.row, *step.kernel, call(step), {run.begin, run.end});
      } catch (const Error& error) {
        throw Error(error.what() + place(step));
      }
    }
  }
}

// Unrolls loops into a list of runs. Consecutive runs of the same step with adjacent ranges become one run.
void ResolvedSteps::unroll_loops() {
  for (plan::Run& run : plan::unroll(plan_, 0, steps_.size())) {
    if (run.begin == run.end) run.begin = steps_[run.step].range.begin, run.end = steps_[run.step].range.end;
    if (!runs_.empty() && runs_.back().step == run.step && runs_.back().end == run.begin) {
      runs_.back().end = run.end;
      runs_.back().last = run.last;
    } else {
      runs_.push_back(run);
    }
  }
}

// Gives each step with moving operands that runs in one thread a second set of operands, which the executor advances.
void ResolvedSteps::copy_moving() {
  const auto in_one = [](const Step& step) { return !step.empty && !step.moving.empty() && !step.chunk; };
  const auto count = [](const Step& step) { return size_t{step.row->num_inputs} + step.row->num_outputs; };
  for (Step& step : steps_) {
    if (!in_one(step)) continue;
    step.moved = static_cast<int>(num_moved_++);
    step.moved_operands = operands_.size();
    for (size_t i = 0; i < count(step); ++i) {
      const Tensor operand = operands_[step.operands + i];
      const uint32_t id = plan_.operands[step.row->operands + i];
      if (id != PLAN_ABSENT && std::find(step.moving.begin(), step.moving.end(), i) == step.moving.end())
        in_space_[plan_.tensors[id].space].push_back({operands_.size(), plan_.tensors[id].offset});
      operands_.push_back(operand);
    }
  }
  for (Step& step : steps_) {
    Call& call = calls_[static_cast<size_t>(&step - steps_.data())];
    call.inputs = {operands_.data() + step.operands, call.inputs.size()};
    call.outputs = {call.inputs.data() + call.inputs.size(), call.outputs.size()};
  }
}

void ResolvedSteps::set_base(uint32_t space, std::byte* base) {
  for (const Placed& placed : in_space_[space]) operands_[placed.operand].data = base + placed.offset;
}

void ResolvedSteps::place_in(std::span<const Piece> pieces, uint32_t space) {
  for (const Placed& placed : in_space_[space]) {
    const auto after = std::upper_bound(pieces.begin(), pieces.end(), placed.offset,
                                        [](uint64_t offset, const Piece& piece) { return offset < piece.offset; });
    if (after == pieces.begin()) continue;  // the tensor is in no piece
    const Piece& piece = *std::prev(after);
    operands_[placed.operand].data = piece.data + (placed.offset - piece.offset);
  }
}

bool ResolvedSteps::prepares(const std::byte* begin, const std::byte* end) const {
  return std::any_of(steps_.begin(), steps_.end(),
                     [&](const Step& step) { return reads_constants(step, call(step), begin, end); });
}

void ResolvedSteps::prepare(const std::byte* begin, const std::byte* end) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (!reads_constants(steps_[i], calls_[i], begin, end)) continue;
    prepared_[i] = steps_[i].kernel->prepare(calls_[i]);
    calls_[i].prepared = prepared_[i].get();
  }
}

// Returns the rows of a constant matrix that a step has packed, without a block if no step has.
PackedRows ResolvedSteps::packed_rows(const Tensor& matrix) const {
  const auto is_same = [&](const Tensor& other) {
    return other.constant && other.data == matrix.data && other.dtype == matrix.dtype && other.rank == matrix.rank &&
           std::equal(other.shape, other.shape + other.rank, matrix.shape) &&
           std::equal(other.strides, other.strides + other.rank, matrix.strides);
  };
  for (const Step& step : steps_) {
    if (!step.kernel || !step.kernel->packed_rows) continue;
    const Call& given = call(step);
    for (size_t i = 0; i < given.inputs.size(); ++i)
      if (is_same(given.inputs[i]))
        if (PackedRows rows = step.kernel->packed_rows(given, static_cast<int>(i)); rows.block) return rows;
  }
  return {};
}

bool ResolvedSteps::forget(uint32_t space, const std::byte* begin, const std::byte* end) {
  const auto is_inside = [&](const Tensor& operand) {
    return operand.present() && begin <= operand.data && operand.data < end;
  };
  std::vector<std::pair<size_t, Prepared>> changed;  // indices of steps that will read packed rows
  for (size_t at = 0; at < steps_.size(); ++at) {
    const Call& given = calls_[at];
    for (size_t i = 0; i < given.inputs.size(); ++i) {
      const Tensor& input = given.inputs[i];
      if (!is_inside(input)) continue;
      const Kernel* const kernel = steps_[at].kernel;
      if (!input.constant || !kernel) return false;
      if (kernel->copies && kernel->copies(given, static_cast<int>(i))) continue;
      const PackedRows rows = kernel->prepare_packed ? packed_rows(input) : PackedRows();
      Prepared prepared = rows.block ? kernel->prepare_packed(given, static_cast<int>(i), rows) : nullptr;
      if (!prepared) return false;
      changed.emplace_back(at, std::move(prepared));
    }
    if (std::any_of(given.outputs.begin(), given.outputs.end(), is_inside)) return false;
  }
  for (auto& [at, prepared] : changed) {
    prepared_[at] = std::move(prepared);
    calls_[at].prepared = prepared_[at].get();
  }
  for (const Placed& placed : in_space_[space]) {
    Tensor& operand = operands_[placed.operand];
    if (is_inside(operand)) operand.data = nowhere(space) + placed.offset;
  }
  return true;
}

}  // namespace hexane::cpu
