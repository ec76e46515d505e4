// Runs the steps of one plan on the CPU: kernels found and prepared when it is made, no allocation after that. A step
// of another device runs beside those that follow it, until the first that touches what it reads or writes.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/lane.h"
#include "core/memory.h"
#include "core/thread_pool.h"
#include "cpu/kernel.h"
#include "plan/loops.h"
#include "plan/reader.h"

namespace hexane::cpu {

class Executor {
 public:
  // `bases` is where each space of the plan begins. It is null for ports, whose base set_base() gives before a run, and
  // for weights that are in `pieces`, ordered by offset. Packed weights are shared through the pool, if there is one.
  // The plan's bytes have to outlive the executor. Throws Error if a kernel is missing or refuses the operands of its
  // step.
  struct Piece {
    uint64_t offset;
    std::byte* data;
  };
  // `elsewhere` gives what runs a step of another device, by its row; it is asked once for each.
  using Elsewhere = std::function<std::function<void()>(size_t row)>;
  // `changing`: spaces of states that no step writes, and whose contents differ from run to run all the same.
  Executor(const plan::Plan& plan, std::span<std::byte* const> bases, std::span<const Piece> pieces, MemoryPool* pool,
           int threads, const Elsewhere& elsewhere, std::span<const uint32_t> changing = {});
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  void set_base(uint32_t space, std::byte* base);
  bool prepares(const std::byte* begin, const std::byte* end) const;  // whether any step reads constants there
  void prepare(const std::byte* begin, const std::byte* end);         // again, the steps that do
  void outdate(const std::byte* begin, const std::byte* end);         // what has been made of the bytes there

  void run();
  // The same, calling `after(step)` after each step, of one in a loop after its last run.
  void run(const std::function<void(size_t)>& after);

  struct StepInfo {
    const Kernel* kernel;
    std::string_view source;
    int64_t cost;  // nanoseconds on one core, estimated
    bool parallel;
    int64_t calls;  // since profile(true)
    int64_t nanoseconds;
    int64_t median;  // nanoseconds of the last calls, kSamples at most
    size_t waited;   // the step that waits until this one has ended: the next, unless some run at the same time
  };
  StepInfo step(size_t index) const;
  size_t num_steps() const { return steps_.size(); }
  int64_t cost() const { return cost_; }
  uint64_t scratch_bytes() const { return scratch_.size(); }

  void profile(bool on);

  // When each step ran in the last call that was profiled, in order of their begins.
  struct Span {
    size_t step;
    int64_t begin, end;  // nanoseconds of one clock
  };
  std::vector<Span> timeline() const;

 private:
  struct Step {
    const Kernel* kernel = nullptr;
    const PlanStep* row = nullptr;
    Call call = {};
    Prepared prepared;
    bool empty = false;  // no output has an element: nothing runs
    bool plain = false;  // a run is one call of the kernel, and nothing else
    int axis = -1;
    Range range = {};
    bool in_loop = false;
    bool rings = false;           // an operand keeps only some of its rows
    std::vector<uint8_t> moving;  // operands of which the kernel does not find them itself
    Call moved = {};              // the call with operands of its own, of which those move
    Tensor* operands = nullptr;   // of `moved`
    bool begins = false;          // something is packed before each run
    size_t waited = 0;            // of a step of a device: the step that waits until this one has ended
    bool waits = false;           // until an earlier step of a device has ended
    int kept = -1;                // which result is kept while what it is made of stays the same; -1: none
    std::vector<int> outdates;    // results that are kept, and that this step outdates
    int64_t chunk = 0;  // indices of the axis that a thread takes at a time; 0: one thread runs the whole range
    uint64_t shared_bytes = 0;
    uint64_t scratch_bytes = 0;  // of each thread
    int64_t cost = 0;
    int64_t calls = 0;
    int64_t nanoseconds = 0;
    int64_t running = 0;           // nanoseconds of this call so far
    std::vector<int64_t> samples;  // of the last calls, the one with number n at n % kSamples
  };

  struct Placed {
    Tensor* operand;
    uint64_t offset;
  };

  static bool reads_constants(const Step& step, const std::byte* begin, const std::byte* end);
  void resolve_all(MemoryPool* pool);
  void resolve_elsewhere(const Elsewhere& elsewhere);
  void find_what_runs_beside();
  bool conflict(const PlanStep& elsewhere, const PlanStep& here) const;
  void run_beside();
  void find_what_is_kept(std::span<const uint32_t> changing);
  void outdate_by(const Step& step) const;
  void record(size_t i, int64_t begin, int64_t end);
  void resolve(Step& step, Prepared prepared) const;  // prepared: of a step like it, or null
  void place_in(std::span<const Piece> pieces, uint32_t space);
  void plan_work(Step& step) const;
  void check_range(const Step& step, Range range) const;
  void check_loops() const;
  void unroll_loops();
  void copy_moving();
  void begin(const Step& step, const ThreadPool::Lease& lease) const;
  void run_step(const Step& step, Range range, const ThreadPool::Lease& lease) const;
  void run_whole(const Step& step, Range range, const ThreadPool::Lease& lease) const;
  [[noreturn]] void rethrow(const Error& error, const Step& step) const;
  std::string place(const Step& step) const;

  const plan::Plan plan_;
  const int threads_;
  std::vector<Tensor> operands_;  // of all steps; their Calls look into it
  std::vector<Tensor> moved_;     // of the steps in which some move
  std::vector<Step> steps_;
  std::vector<plan::Run> runs_;                // of all steps, if there are loops
  std::vector<std::vector<Placed>> in_space_;  // operands that live in each space
  mutable std::vector<uint8_t> is_kept_;       // results that are as if they had just been made
  Memory scratch_;
  int64_t cost_ = 0;
  bool any_parallel_ = false;
  bool profiling_ = false;
  std::unique_ptr<Lane> lane_;  // runs steps of devices; null where none can run at the same time as others
  std::vector<Span> timeline_;
};

// Highway's name of the instruction set the kernels run on.
const char* isa();

}  // namespace hexane::cpu
