// Runs resolved steps for one caller. Each executor has its own operand addresses, scratch and table of kept results. A
// run allocates nothing. A device step overlaps the steps after it, up to the next device step or the first step that
// writes its operands or touches its results.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/lane.h"
#include "core/memory.h"
#include "cpu/resolved_steps.h"

namespace hexane::cpu {

// One run of a step: its begin and end in nanoseconds of one clock. A step in a loop runs several times in a call.
struct Ran {
  size_t step;
  int64_t begin, end;
  bool last;  // true for the step's last run in the call
};

// An observer is notified of each run of a step.
struct Observer {
  std::function<void(const Ran&)> ran;  // Called after each run of a step.
  bool overlaps = true;                 // Device steps may overlap other steps.
};

class Executor {
 public:
  // `bases`: the base address of each space of the plan that the caller owns; null for ports, whose base set_base()
  // sets before a run, and for weights. `elsewhere` is called once for each device step, with its row, and returns the
  // function that runs the step. The steps have to outlive the executor.
  using Elsewhere = std::function<std::function<void()>(size_t row)>;
  Executor(const ResolvedSteps& steps, std::span<std::byte* const> bases, const Elsewhere& elsewhere);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  void set_base(uint32_t space, std::byte* base);
  void take_constants();  // copies the current addresses of weights and of their prepared data

  // Constants in the caller's memory, such as a state that no step writes. prepares(): true if a step has data prepared
  // from these bytes. prepare(): prepares that data again, for this executor alone. only_own: only for steps that no
  // longer use the data shared by all callers.
  bool prepares(const std::byte* begin, const std::byte* end) const;
  void prepare(const std::byte* begin, const std::byte* end, bool only_own = false);
  void outdate(const std::byte* begin, const std::byte* end);  // invalidates kept results computed from these bytes

  void run(const Observer* observer = nullptr);

  uint64_t scratch_bytes() const { return scratch_.size(); }
  uint64_t table_bytes() const;  // size of the tables of addresses

 private:
  template <bool observed, bool overlaps>
  void run_all(const Observer* observer);
  void begin(const Step& step, const Call& call, const ThreadPool::Lease& lease) const;
  void run_step(size_t index, Range range, const ThreadPool::Lease& lease);
  void run_whole(size_t index, Range range, const ThreadPool::Lease& lease);
  void run_moved(size_t index, Range range, std::byte* scratch, const std::byte* shared);
  void outdate_by(size_t index);
  [[noreturn]] void rethrow(const Error& error, size_t index) const;

  const ResolvedSteps& steps_;
  std::vector<Tensor> operands_;        // Copies of the steps' operands, to which calls point.
  std::vector<Call> calls_;             // One call for each step.
  std::vector<Call> moved_calls_;       // Calls on the second set of operands, for steps with such a set.
  std::vector<uint8_t> is_kept_;        // Whether each kept result is up to date.
  std::vector<Prepared> own_prepared_;  // For each step: data prepared from the caller's constants; may be empty.
  Memory scratch_;
  std::vector<std::function<void()>> elsewhere_;  // Functions that run the device steps.
  std::unique_ptr<Lane> lane_;                    // Runs device steps; null if no device step can overlap other steps.
};

// Highway's name of the instruction set the kernels run on.
const char* isa();

}  // namespace hexane::cpu
