#include "cpu/executor.h"

#include <hwy/highway.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "cpu/rings.h"

namespace hexane::cpu {
namespace {

constexpr size_t kNone = SIZE_MAX;

}  // namespace

Executor::Executor(const ResolvedSteps& steps, std::span<std::byte* const> bases, const Elsewhere& elsewhere)
    : steps_(steps),
      operands_(steps.operands()),
      calls_(steps.calls()),
      moved_calls_(steps.num_moved()),
      is_kept_(steps.num_kept()),
      scratch_(steps.scratch_bytes(), "scratch") {
  for (size_t i = 0; i < calls_.size(); ++i) {
    const Step& step = steps_.steps()[i];
    const auto point = [&](Call& call, size_t operands) {
      call.inputs = {operands_.data() + operands, step.row->num_inputs};
      call.outputs = {operands_.data() + operands + step.row->num_inputs, step.row->num_outputs};
    };
    point(calls_[i], step.operands);
    if (step.elsewhere) {
      elsewhere_.resize(calls_.size());
      elsewhere_[i] = elsewhere(i);
      calls_[i].prepared = &elsewhere_[i];
    }
    if (step.moved >= 0) point(moved_calls_[step.moved] = calls_[i], step.moved_operands);
  }
  for (uint32_t space = 0; space < bases.size(); ++space)
    if (bases[space]) set_base(space, bases[space]);
  if (steps_.overlaps()) lane_ = std::make_unique<Lane>();
}

void Executor::set_base(uint32_t space, std::byte* base) {
  for (const auto& placed : steps_.in_space(space)) operands_[placed.operand].data = base + placed.offset;
}

void Executor::take_constants() {
  const plan::Plan& plan = steps_.plan();
  for (uint32_t space = 0; space < plan.spaces.size(); ++space)
    if (plan.string(plan.spaces[space].kind) == "weights")
      for (const auto& placed : steps_.in_space(space))
        operands_[placed.operand].data = steps_.operands()[placed.operand].data;
  for (size_t i = 0; i < calls_.size(); ++i) {
    const Step& step = steps_.steps()[i];
    if (step.elsewhere || (!own_prepared_.empty() && own_prepared_[i])) continue;
    calls_[i].prepared = steps_.calls()[i].prepared;
    if (step.moved >= 0) moved_calls_[step.moved].prepared = calls_[i].prepared;
  }
}

bool Executor::prepares(const std::byte* begin, const std::byte* end) const {
  for (size_t i = 0; i < calls_.size(); ++i)
    if (reads_constants(steps_.steps()[i], calls_[i], begin, end)) return true;
  return false;
}

void Executor::prepare(const std::byte* begin, const std::byte* end, bool only_own) {
  if (only_own && own_prepared_.empty()) return;
  own_prepared_.resize(calls_.size());
  for (size_t i = 0; i < calls_.size(); ++i) {
    const Step& step = steps_.steps()[i];
    if ((only_own && !own_prepared_[i]) || !reads_constants(step, calls_[i], begin, end)) continue;
    own_prepared_[i] = step.kernel->prepare(calls_[i]);
    calls_[i].prepared = own_prepared_[i].get();
    if (step.moved >= 0) moved_calls_[step.moved].prepared = calls_[i].prepared;
  }
}

void Executor::outdate(const std::byte* begin, const std::byte* end) {
  for (size_t i = 0; i < calls_.size(); ++i)
    if (const int kept = steps_.steps()[i].kept;
        kept >= 0 && std::any_of(calls_[i].inputs.begin(), calls_[i].inputs.end(), [&](const Tensor& t) {
          return t.present() && t.data < end && t.data + extent_bytes(t) > begin;
        }))
      is_kept_[kept] = false;
}

uint64_t Executor::table_bytes() const {
  return operands_.size() * sizeof(Tensor) + (calls_.size() + moved_calls_.size()) * sizeof(Call);
}

// Throws the current error again with the place of step `index` in its message. A device's exception passes unchanged,
// because it carries data in addition to its message.
void Executor::rethrow(const Error& error, size_t index) const {
  const Step& step = steps_.steps()[index];
  if (step.elsewhere) throw;
  throw Error(error.what() + steps_.place(step));
}

void Executor::begin(const Step& step, const Call& call, const ThreadPool::Lease& lease) const {
  const Kernel& kernel = *step.kernel;
  std::byte* shared = scratch_.data();
  const int64_t parts = step.chunk && lease && kernel.begin_parts ? kernel.begin_parts(call) : 1;
  if (parts == 1) return kernel.begin(call, shared);
  std::atomic<int64_t> next{0};
  lease.run([&](int) {
    for (int64_t part; (part = next.fetch_add(1, std::memory_order_relaxed)) < parts;)
      kernel.begin_part(call, part, shared);
  });
}

// Called before a step runs: marks the kept results that the step outdates.
void Executor::outdate_by(size_t index) {
  const Step& step = steps_.steps()[index];
  if (step.outdates.empty() || (step.kernel->changes && !step.kernel->changes(calls_[index]))) return;
  for (const int kept : step.outdates) is_kept_[kept] = false;
}

void Executor::run_step(size_t index, Range range, const ThreadPool::Lease& lease) {
  const Step& step = steps_.steps()[index];
  if (step.empty || (step.kept >= 0 && is_kept_[step.kept])) return;
  outdate_by(index);
  run_whole(index, range, lease);
  if (step.kept >= 0) is_kept_[step.kept] = true;
}

void Executor::run_moved(size_t index, Range range, std::byte* scratch, const std::byte* shared) {
  const Step& step = steps_.steps()[index];
  run_rows(*step.kernel, calls_[index], step.moving, moved_calls_[step.moved], &operands_[step.moved_operands], range,
           scratch, shared);
}

void Executor::run_whole(size_t index, Range range, const ThreadPool::Lease& lease) {
  const Step& step = steps_.steps()[index];
  const Call& call = calls_[index];
  std::byte* shared = scratch_.data();
  std::byte* scratch = shared + step.shared_bytes;
  if (step.begins) begin(step, call, lease);
  const auto run = [&](Range part, std::byte* own) {
    if (step.moved >= 0)
      run_moved(index, part, own, shared);
    else if (!step.moving.empty())
      run_rows(*step.kernel, call, step.moving, part, own, shared);
    else
      step.kernel->run(call, step.axis, part, own, shared);
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

// Runs all steps. `at` is the step whose error is reported. overlaps: device steps run in the lane.
template <bool observed, bool overlaps>
void Executor::run_all(const Observer* observer) {
  std::optional<ThreadPool::Caller> caller;
  std::optional<ThreadPool::Lease> lease(std::in_place);
  const auto take_threads = [&] {
    if (!steps_.any_parallel()) return;
    caller.emplace(ThreadPool::of_process());
    lease.emplace(caller->try_lease(steps_.threads()));
  };
  const auto leave_threads = [&] {
    lease.emplace();
    caller.reset();
  };
  take_threads();
  const Step* const steps = steps_.steps().data();
  size_t at = 0;
  size_t started = kNone;  // the step that runs in the lane
  const auto wait = [&] {
    if (!overlaps || started == kNone) return;
    const size_t here = std::exchange(at, std::exchange(started, kNone));
    lane_->wait();
    if constexpr (observed) observer->ran({at, lane_->last().begin, lane_->last().end, true});
    at = here;
  };
  const auto run_one = [&](Range range, [[maybe_unused]] bool last) {
    const Step& step = steps[at];
    [[maybe_unused]] int64_t begin = 0;
    if constexpr (observed) begin = now();
    std::byte* shared = scratch_.data();
    if (step.plain) [[likely]] {
      step.kernel->run(calls_[at], step.axis, range, shared + step.shared_bytes, shared);
    } else if (step.moved >= 0 && !step.begins && !step.waits && step.outdates.empty()) {
      run_moved(at, range, shared + step.shared_bytes, shared);
    } else {
      if (step.waits || step.elsewhere) wait();
      if (overlaps && step.elsewhere && step.waited > at + 1) {
        outdate_by(at);
        lane_->start(elsewhere_[at]);
        started = at;
        return;
      }
      if constexpr (observed) begin = now();                       // The time starts after a wait for another step.
      const bool leaves = step.kernel && step.kernel->runs_steps;  // The step leaves the threads to its body's steps.
      if (leaves) leave_threads();
      run_step(at, range, *lease);
      if (leaves) take_threads();
    }
    if constexpr (observed) observer->ran({at, begin, now(), last});
  };
  try {
    if (steps_.runs().empty())
      for (const size_t end = steps_.steps().size(); at != end; ++at) run_one(steps[at].range, true);
    for (const plan::Run& run : steps_.runs()) {
      at = run.step;
      run_one({run.begin, run.end}, run.last);
    }
    wait();
  } catch (...) {
    if (overlaps && started != kNone) try {
        lane_->wait();
      } catch (...) {  // a later error is dropped: only the first is reported
      }
    try {
      throw;
    } catch (const Error& error) {
      rethrow(error, at);
    }
  }
}

void Executor::run(const Observer* observer) {
  if (!observer) [[likely]]
    return lane_ ? run_all<false, true>(nullptr) : run_all<false, false>(nullptr);
  return lane_ && observer->overlaps ? run_all<true, true>(observer) : run_all<true, false>(observer);
}

const char* isa() {
  const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(targets & -targets);
}

}  // namespace hexane::cpu
