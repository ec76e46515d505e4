// Runs resolved steps for one caller, in memory of its own: where operands are, scratch, and which results are kept. It
// allocates nothing after it is made. A step of another device overlaps the steps after it, until the first that
// touches its operands or results.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/lane.h"
#include "core/memory.h"
#include "cpu/resolved_steps.h"

namespace hexane::cpu {

// A run of a step, in nanoseconds of one clock. A step in a loop runs several times in a call.
struct Ran {
  size_t step;
  int64_t begin, end;
  bool last;  // of the call
};

// Watches a call from outside.
struct Observer {
  std::function<void(const Ran&)> ran;  // after each run of a step
  bool overlaps = true;                 // steps of a device may overlap others
};

class Executor {
 public:
  // `bases` is where each space of the plan begins that is the caller's. It is null for ports, whose base set_base()
  // gives before a run, and for weights. `elsewhere` gives what runs a step of another device, by its row; it is asked
  // once for each. The steps have to outlive the executor.
  using Elsewhere = std::function<std::function<void()>(size_t row)>;
  Executor(const ResolvedSteps& steps, std::span<std::byte* const> bases, const Elsewhere& elsewhere);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  void set_base(uint32_t space, std::byte* base);
  void take_constants();  // takes the current addresses of weights, and their prepared data

  // Constants in the caller's memory, such as a state that no step writes: prepared data of bytes there is made again,
  // and is the caller's own. `only_own`: but not by steps that still use what all callers share.
  bool prepares(const std::byte* begin, const std::byte* end) const;
  void prepare(const std::byte* begin, const std::byte* end, bool only_own = false);
  void outdate(const std::byte* begin, const std::byte* end);  // invalidates results computed from the bytes there

  void run(const Observer* observer = nullptr);

  uint64_t scratch_bytes() const { return scratch_.size(); }
  uint64_t table_bytes() const;  // of addresses

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
  std::vector<Tensor> operands_;        // copies of the steps' operands; calls point into it
  std::vector<Call> calls_;             // of all steps
  std::vector<Call> moved_calls_;       // with the second set of operands, for steps that have one
  std::vector<uint8_t> is_kept_;        // results that are up to date
  std::vector<Prepared> own_prepared_;  // of all steps, of constants in the caller's memory; empty while there are none
  Memory scratch_;
  std::vector<std::function<void()>> elsewhere_;  // run the steps of devices
  std::unique_ptr<Lane> lane_;  // runs steps of devices; null where none can run at the same time as others
};

// Highway's name of the instruction set the kernels run on.
const char* isa();

}  // namespace hexane::cpu
