#include "cpu/executor.h"

#include <hwy/highway.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "cpu/attributes.h"
#include "cpu/rings.h"
#include "cpu/row_order.h"

namespace hexane::cpu {
namespace {

constexpr int64_t kParallelCost = 5000;         // ns; below it waking other threads costs more than they save
constexpr int64_t kChunkCost = 4000;            // ns; in smaller pieces kernels lose more than threads win
constexpr int64_t kParallelRun = 25000;         // ns; less work is done before a sleeping thread is up
constexpr uint64_t kParallelWeights = 1 << 20;  // bytes; from this size on threads prepare steps together
constexpr int64_t kMostCost = int64_t{1} << 50;
constexpr uint64_t kLine = 64;
constexpr int64_t kSamples = 128;  // calls whose time a profile keeps for each step

uint64_t whole_lines(uint64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

int64_t item_bytes(const Tensor& tensor) { return (info(tensor.dtype).bits + 7) / 8; }

int64_t extent_bytes(const Tensor& tensor) {
  int64_t last = item_bytes(tensor);
  for (int axis = 0; axis < tensor.rank; ++axis) last += (tensor.shape[axis] - 1) * tensor.strides[axis];
  return tensor.size() ? last : 0;
}

// Whether the strides are what a kernel accepts: "strided", "rows" (innermost axis dense) or "dense" (no gaps).
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

// The cost of a kernel that gives none: moving the bytes of its operands at about the speed of memory.
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

// Equal for calls of one plan that prepare() cannot tell apart: they differ at most in where data lies that changes.
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

// For each tensor of the plan, whether its bytes are the same in every call: a weight, or a state that no step writes.
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

}  // namespace

Executor::Executor(const plan::Plan& plan, std::span<std::byte* const> bases, std::span<const Piece> pieces,
                   MemoryPool* pool, int threads, const Elsewhere& elsewhere, std::span<const uint32_t> changing)
    : plan_(plan), threads_(std::clamp(threads, 1, ThreadPool::kMostThreads)), in_space_(plan.spaces.size()) {
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
      operands_.push_back({nullptr, plan_.dtype(tensor), static_cast<int>(tensor.rank), constant[id], tensor.ring,
                           tensor.shape, tensor.strides});
      in_space_[tensor.space].push_back({&operands_.back(), tensor.offset});
    }
  for (uint32_t space = 0; space < bases.size(); ++space)
    if (bases[space]) set_base(space, bases[space]);
  if (!pieces.empty())
    for (uint32_t space = 0; space < bases.size(); ++space)
      if (plan_.string(plan_.spaces[space].kind) == "weights") place_in(pieces, space);
  resolve_all(pool);
  resolve_elsewhere(elsewhere);
  find_what_runs_beside();
  find_what_is_kept(changing);
  if (!plan_.loops.empty()) {
    check_loops();
    unroll_loops();
  }
  uint64_t scratch = 0;
  int64_t shared_cost = 0;
  for (const Step& step : steps_)
    if (step.chunk) shared_cost = std::min(shared_cost + step.cost, kMostCost);
  any_parallel_ = shared_cost >= kParallelRun;
  for (Step& step : steps_) {
    if (!any_parallel_) step.chunk = 0;
    const bool alone = step.kept < 0 && step.outdates.empty();
    step.plain = alone && !step.empty && !step.begins && step.moving.empty() && !step.chunk;
    cost_ = std::min(cost_ + step.cost, kMostCost);
    const uint64_t users = step.chunk ? static_cast<uint64_t>(threads_) : 1;
    scratch = std::max(scratch, step.shared_bytes + users * step.scratch_bytes);
  }
  copy_moving();
  scratch_ = Memory(scratch, "scratch");
}

// Threads share the steps, for packing weights takes time; the time steps of a recurrent network share what is packed.
// The error of the first step that has one is thrown.
void Executor::resolve_all(MemoryPool* pool) {
  steps_.resize(plan_.steps.size());
  for (const PlanLoop& loop : plan::outer_loops(plan_))
    for (size_t i = 0; i < loop.num_steps; ++i) steps_[loop.first_step + i].in_loop = true;
  Tensor* operands = operands_.data();
  for (size_t i = 0; i < steps_.size(); ++i) {
    const PlanStep& row = plan_.steps[i];
    const PlanNumerics& numerics = plan_.numerics[row.numerics];
    steps_[i].row = &row;
    steps_[i].call = {{operands, row.num_inputs},
                      {operands + row.num_inputs, row.num_outputs},
                      plan_.attrs.data() + row.attrs,
                      plan_.string(0).data(),
                      nullptr,
                      numerics.bytes ? plan_.attrs.data() + numerics.offset : nullptr,
                      pool};
    operands += size_t{row.num_inputs} + row.num_outputs;
  }
  std::unordered_map<std::string, size_t> first;
  std::vector<size_t> like(steps_.size());  // the first step that is prepared as this one is
  for (size_t i = 0; i < steps_.size(); ++i) {
    const PlanStep& row = plan_.steps[i];
    const auto attrs = plan_.attrs.subspan(row.attrs, row.attrs_bytes);
    like[i] = first.try_emplace(likeness(row, steps_[i].call, attrs), i).first->second;
  }
  std::vector<std::exception_ptr> errors(steps_.size());
  const auto try_resolve = [&](size_t i) {
    if (plan_.string(plan_.steps[i].device) != "cpu") return;
    try {
      resolve(steps_[i], steps_[like[i]].prepared);
    } catch (...) {
      errors[i] = std::current_exception();
    }
  };
  std::atomic<size_t> next{0};
  auto work = [&](int) {
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < steps_.size();)
      if (like[i] == i) try_resolve(i);
  };
  const bool worth_it = plan_.weights.size() >= kParallelWeights;
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

// The error being caught, and where it happened. What a device throws goes on as it is: it has more than a message.
void Executor::rethrow(const Error& error, const Step& step) const {
  if (plan_.string(step.row->device) != "cpu") throw;
  throw Error(error.what() + place(step));
}

std::string Executor::place(const Step& step) const {
  const std::string_view source = plan_.string(step.row->source);
  return " (step " + std::to_string(step.row - plan_.steps.data()) + ", " +
         std::string(plan_.string(step.row->kernel)) + (source.empty() ? "" : ", ") + std::string(source) + ")";
}

void Executor::resolve(Step& step, Prepared prepared) const {
  const PlanStep& row = *step.row;
  try {
    const Kernel& kernel =
        find_kernel(plan_.string(row.kernel), plan_.string(plan_.numerics[row.numerics].family), step.call);
    step.kernel = &kernel;
    check_attributes(kernel.name, kernel, plan_.attrs.subspan(row.attrs, row.attrs_bytes), plan_.strings,
                     row.num_inputs);
    for (size_t i = 0; i < size_t{row.num_inputs} + row.num_outputs; ++i) {
      const Tensor& tensor = step.call.inputs.data()[i];  // the outputs follow
      if (!tensor.present()) continue;
      if (!accepted(tensor, kernel.accepts))
        fail(kernel.name, "operand ", i, ": got strides that are not ", kernel.accepts);
    }
    step.prepared = prepared || !kernel.prepare ? std::move(prepared) : kernel.prepare(step.call);
    step.call.prepared = step.prepared.get();
    plan_work(step);
  } catch (const Error& error) {
    throw Error(error.what() + place(step));
  }
}

// Decides the range of a step, and whether threads share it: along the first axis that gives each of them a piece, or
// else the one with most pieces.
void Executor::plan_work(Step& step) const {
  const Kernel& kernel = *step.kernel;
  const Call& call = step.call;
  step.empty = std::all_of(call.outputs.begin(), call.outputs.end(), [](const Tensor& t) { return t.size() == 0; });
  step.cost = step.empty ? 0 : std::clamp<int64_t>((kernel.cost ? kernel.cost : default_cost)(call), 0, kMostCost);
  step.shared_bytes = kernel.shared_scratch ? checked_scratch(kernel.name, kernel.shared_scratch(call)) : 0;
  step.begins = kernel.begin && step.shared_bytes != 0;  // else there is nothing that it could fill
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
  int64_t cost = step.cost;  // of one run
  if (step.in_loop) cost = cost / chosen->extent * std::min(step.range.end - step.range.begin, chosen->extent);
  if (threads_ == 1 || pieces < 2 || cost < kParallelCost || kernel.in_order) return;
  const int64_t chunks = std::min({pieces, int64_t{4} * threads_, std::max<int64_t>(threads_, cost / kChunkCost)});
  step.chunk = (pieces + chunks - 1) / chunks * chosen->grain;
}

// Whether the step's kernel can be run on this range of the axis along which the step is cut.
void Executor::check_range(const Step& step, Range range) const {
  const Kernel& kernel = *step.kernel;
  Cuts cuts;
  kernel.cuts(step.call, cuts);
  const Cut* cut = cuts.items;
  while (cut->axis != step.row->cut_axis) ++cut;
  if (range.end > cut->extent || range.begin % cut->grain || (range.end % cut->grain && range.end != cut->extent))
    fail(kernel.name, "cut: got [", range.begin, ", ", range.end, "), need multiples of ", cut->grain, " up to ",
         cut->extent);
  if (step.rings) check_rings(kernel, step.call, range);
  if (kernel.in_order && !step.in_loop && range.begin != 0)
    fail(kernel.name, "cut: got [", range.begin, ", ", range.end, ") outside of a loop, need it from 0 on");
}

void Executor::check_loops() const {
  for (const PlanLoop& loop : plan::outer_loops(plan_)) {
    const size_t end = size_t{loop.first_step} + loop.num_steps;
    RowOrder order(plan_, loop.first_step, end);
    for (const plan::Run& run : plan::unroll(plan_, loop.first_step, end)) {
      const Step& step = steps_[run.step];
      if (step.empty) continue;
      try {
        check_range(step, {run.begin, run.end});
        order.run(step.kernel->name, *step.row, *step.kernel, step.call, {run.begin, run.end});
      } catch (const Error& error) {
        throw Error(error.what() + place(step));
      }
    }
  }
}

// A step that runs twice with no other between computes the rows of both at once.
void Executor::unroll_loops() {
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

// Gives the steps with operands that move, which one thread runs, operands for them.
void Executor::copy_moving() {
  const auto in_one = [](const Step& step) { return !step.empty && !step.moving.empty() && !step.chunk; };
  const auto count = [](const Step& step) { return step.call.inputs.size() + step.call.outputs.size(); };
  size_t total = 0;
  for (const Step& step : steps_) total += in_one(step) ? count(step) : 0;
  moved_.reserve(total);
  for (Step& step : steps_) {
    if (!in_one(step)) continue;
    step.operands = moved_.data() + moved_.size();
    const PlanStep& row = *step.row;
    for (size_t i = 0; i < count(step); ++i) {
      moved_.push_back(step.call.inputs.data()[i]);  // the outputs follow
      const uint32_t id = plan_.operands[row.operands + i];
      if (id == PLAN_ABSENT || std::find(step.moving.begin(), step.moving.end(), i) != step.moving.end()) continue;
      in_space_[plan_.tensors[id].space].push_back({&moved_.back(), plan_.tensors[id].offset});
    }
    step.moved = step.call;
    step.moved.inputs = {step.operands, row.num_inputs};
    step.moved.outputs = {step.operands + row.num_inputs, row.num_outputs};
  }
}

void Executor::set_base(uint32_t space, std::byte* base) {
  for (const Placed& placed : in_space_[space]) placed.operand->data = base + placed.offset;
}

void Executor::place_in(std::span<const Piece> pieces, uint32_t space) {
  for (const Placed& placed : in_space_[space]) {
    const auto after = std::upper_bound(pieces.begin(), pieces.end(), placed.offset,
                                        [](uint64_t offset, const Piece& piece) { return offset < piece.offset; });
    if (after == pieces.begin()) continue;  // no element of it is in any
    const Piece& piece = *std::prev(after);
    placed.operand->data = piece.data + (placed.offset - piece.offset);
  }
}

bool Executor::reads_constants(const Step& step, const std::byte* begin, const std::byte* end) {
  return step.kernel->prepare && std::any_of(step.call.inputs.begin(), step.call.inputs.end(), [&](const Tensor& t) {
           return t.constant && t.data < end && t.data + extent_bytes(t) > begin;
         });
}

bool Executor::prepares(const std::byte* begin, const std::byte* end) const {
  return std::any_of(steps_.begin(), steps_.end(), [&](const Step& step) { return reads_constants(step, begin, end); });
}

void Executor::prepare(const std::byte* begin, const std::byte* end) {
  for (Step& step : steps_) {
    if (!reads_constants(step, begin, end)) continue;
    step.prepared = step.kernel->prepare(step.call);
    step.call.prepared = step.moved.prepared = step.prepared.get();
  }
}

void Executor::outdate(const std::byte* begin, const std::byte* end) {
  for (const Step& step : steps_)
    if (step.kept >= 0 && std::any_of(step.call.inputs.begin(), step.call.inputs.end(), [&](const Tensor& t) {
          return t.present() && t.data < end && t.data + extent_bytes(t) > begin;
        }))
      is_kept_[step.kept] = false;
}

void Executor::begin(const Step& step, const ThreadPool::Lease& lease) const {
  const Kernel& kernel = *step.kernel;
  std::byte* shared = scratch_.data();
  const int64_t parts = step.chunk && lease && kernel.begin_parts ? kernel.begin_parts(step.call) : 1;
  if (parts == 1) return kernel.begin(step.call, shared);
  std::atomic<int64_t> next{0};
  lease.run([&](int) {
    for (int64_t part; (part = next.fetch_add(1, std::memory_order_relaxed)) < parts;)
      kernel.begin_part(step.call, part, shared);
  });
}

void Executor::run_step(const Step& step, Range range, const ThreadPool::Lease& lease) const {
  if (step.empty || (step.kept >= 0 && is_kept_[step.kept])) return;
  outdate_by(step);
  run_whole(step, range, lease);
  if (step.kept >= 0) is_kept_[step.kept] = true;
}

void Executor::run_whole(const Step& step, Range range, const ThreadPool::Lease& lease) const {
  const Kernel& kernel = *step.kernel;
  std::byte* shared = scratch_.data();
  std::byte* scratch = shared + step.shared_bytes;
  if (step.begins) begin(step, lease);
  const auto run = [&](Range part, std::byte* own) {
    if (step.operands)
      run_rows(kernel, step.call, step.moving, step.moved, step.operands, part, own, shared);
    else if (!step.moving.empty())
      run_rows(kernel, step.call, step.moving, part, own, shared);
    else
      kernel.run(step.call, step.axis, part, own, shared);
  };
  if (!step.chunk || !lease) return run(range, scratch);
  std::atomic<int64_t> next{range.begin};
  lease.run([&](int worker) {
    for (;;) {
      const int64_t begin = next.fetch_add(step.chunk, std::memory_order_relaxed);
      if (begin >= range.end) return;
      run({begin, std::min(begin + step.chunk, range.end)},
          scratch + static_cast<uint64_t>(worker) * step.scratch_bytes);
    }
  });
}

void Executor::record(size_t i, int64_t begin, int64_t end) {
  Step& step = steps_[i];
  step.nanoseconds += end - begin;
  step.samples[step.calls++ % kSamples] = end - begin;
  timeline_.push_back({i, begin, end});
}

void Executor::run() {
  if (lane_) return run_beside();
  if (profiling_) return run([](size_t) {});
  const auto lease = any_parallel_ ? ThreadPool::of_process().try_lease(threads_) : ThreadPool::Lease();
  const Step* step = steps_.data();
  const auto run_one = [&](Range range) {
    std::byte* shared = scratch_.data();
    if (step->plain) [[likely]]
      step->kernel->run(step->call, step->axis, range, shared + step->shared_bytes, shared);
    else if (step->operands && !step->begins)
      run_rows(*step->kernel, step->call, step->moving, step->moved, step->operands, range, shared + step->shared_bytes,
               shared);
    else
      run_step(*step, range, lease);
  };
  try {
    if (runs_.empty())
      for (const Step* end = step + steps_.size(); step != end; ++step) run_one(step->range);
    for (const plan::Run& run : runs_) {
      step = &steps_[run.step];
      run_one({run.begin, run.end});
    }
  } catch (const Error& error) {
    rethrow(error, *step);
  }
}

void Executor::run(const std::function<void(size_t)>& after) {
  const auto lease = any_parallel_ ? ThreadPool::of_process().try_lease(threads_) : ThreadPool::Lease();
  const auto run_one = [&](Step& step, Range range) {
    const int64_t begin = now();
    try {
      run_step(step, range, lease);
    } catch (const Error& error) {
      rethrow(error, step);
    }
    if (profiling_) step.running += now() - begin;
  };
  timeline_.clear();
  const auto done = [&](size_t i) {
    Step& step = steps_[i];
    if (profiling_) {
      step.nanoseconds += step.running;
      step.samples[step.calls++ % kSamples] = step.running;
      timeline_.push_back({i, now() - step.running, now()});
      step.running = 0;
    }
    after(i);
  };
  if (runs_.empty())
    for (size_t i = 0; i < steps_.size(); ++i) {
      run_one(steps_[i], steps_[i].range);
      done(i);
    }
  for (const plan::Run& run : runs_) {
    run_one(steps_[run.step], {run.begin, run.end});
    if (run.last) done(run.step);
  }
}

void Executor::profile(bool on) {
  if (on)
    for (Step& step : steps_) {
      step.calls = step.nanoseconds = step.running = 0;
      step.samples.resize(kSamples);
    }
  timeline_.reserve(on ? steps_.size() : 0);
  profiling_ = on;
}

Executor::StepInfo Executor::step(size_t index) const {
  const Step& step = steps_[index];
  std::vector<int64_t> samples = step.samples;
  samples.resize(std::min<size_t>(samples.size(), step.calls));
  const auto middle = samples.begin() + static_cast<ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return {step.kernel,
          plan_.string(step.row->source),
          step.cost,
          step.chunk != 0,
          step.calls,
          step.nanoseconds,
          samples.empty() ? 0 : *middle,
          step.waited ? step.waited : index + 1};
}

std::vector<Executor::Span> Executor::timeline() const {
  std::vector<Span> result = timeline_;
  std::stable_sort(result.begin(), result.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  return result;
}

const char* isa() {
  const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(targets & -targets);
}

}  // namespace hexane::cpu
