// The steps of one plan, resolved once for all callers: kernels found, constants packed, ranges and threads decided.
// Each caller has its own executor; executors may run the steps concurrently.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/thread_pool.h"
#include "cpu/kernel.h"
#include "plan/loops.h"
#include "plan/reader.h"

namespace hexane::cpu {

// The constant data of a step for its runs. Addresses of operands belong to an executor.
struct Step {
  const Kernel* kernel = nullptr;
  int axis = -1;
  bool plain = false;   // A run is only a single call of the kernel.
  bool empty = false;   // No output has an element: the step does not run.
  bool rings = false;   // An operand is a ring.
  bool begins = false;  // The kernel's begin() runs before each run.
  bool in_loop = false;
  bool elsewhere = false;  // Another device runs the step.
  bool waits = false;      // The step waits until an earlier device step has ended.
  Range range = {};
  uint64_t shared_bytes = 0;
  uint64_t scratch_bytes = 0;   // Scratch bytes of each thread.
  int64_t chunk = 0;            // Indices of the axis that a thread takes at a time; 0: one thread runs the range.
  size_t waited = 0;            // For a device step: index of the step that waits for it; the steps between overlap it.
  std::vector<uint8_t> moving;  // Operands whose addresses the executor advances.
  int moved = -1;               // Index of the second set of operands, whose addresses the executor advances; -1: none.
  size_t moved_operands = 0;    // Index of the first operand of the second set.
  int kept = -1;  // Index of the kept result, which stays valid while the step's operands do not change; -1: none.
  std::vector<int> outdates;  // Indices of kept results that this step outdates.
  int64_t cost = 0;           // Estimated nanoseconds on one core.
  const PlanStep* row = nullptr;
  size_t operands = 0;  // index of the step's first input; the outputs follow the inputs
};

class ResolvedSteps {
 public:
  // `bases`: the base address of each space whose bytes are constants. A base is null for spaces of an executor, and
  // for weights that are in `pieces`, ordered by offset. Packed weights are shared through `pool`, which may be null.
  // `changing`: spaces of states that no step writes but that change between runs. `depth`: nesting depth of the plan
  // in bodies. The plan's bytes have to outlive the steps. Throws Error if there is no kernel for a step, or if the
  // kernel rejects the step's operands.
  struct Piece {
    uint64_t offset;
    std::byte* data;
  };
  ResolvedSteps(const plan::Plan& plan, std::span<std::byte* const> bases, std::span<const Piece> pieces,
                MemoryPool* pool, int threads, std::span<const uint32_t> changing = {}, int depth = 0);
  ResolvedSteps(const ResolvedSteps&) = delete;
  ResolvedSteps& operator=(const ResolvedSteps&) = delete;

  const plan::Plan& plan() const { return plan_; }
  int threads() const { return threads_; }
  const std::vector<Step>& steps() const { return steps_; }
  // The unrolled order of the steps; empty for a plan without loops.
  const std::vector<plan::Run>& runs() const { return runs_; }
  size_t num_kept() const { return num_kept_; }
  size_t num_moved() const { return num_moved_; }  // number of second sets of operands
  bool any_parallel() const { return any_parallel_; }
  bool overlaps() const { return overlaps_; }  // whether CPU steps overlap a device step
  int64_t cost() const { return cost_; }
  uint64_t scratch_bytes() const { return scratch_bytes_; }
  std::string place(const Step& step) const;  // text for error messages

  // An operand in a space: its index in operands() and its offset in the space.
  struct Placed {
    size_t operand;
    uint64_t offset;
  };
  std::span<const Placed> in_space(uint32_t space) const { return in_space_[space]; }

  // The initial data of an executor. Constant operands have their addresses. Other operands have placeholder addresses,
  // which may be compared but not read. calls() has one call for each step, with its operands and prepared data.
  const std::vector<Tensor>& operands() const { return operands_; }
  const std::vector<Call>& calls() const { return calls_; }

  // These functions are for constants that have changed while no executor runs. prepare() prepares the data of these
  // bytes again. After prepare() each executor has to call take_constants().
  void set_base(uint32_t space, std::byte* base);
  // Whether any step has data prepared from these bytes.
  bool prepares(const std::byte* begin, const std::byte* end) const;
  void prepare(const std::byte* begin, const std::byte* end);
  // Moves the constants in this range of a space to placeholder addresses, if steps no longer read them: their kernels
  // have copied them, or read the packed rows of other steps from now on. Otherwise returns false. Call this before
  // there are executors.
  bool forget(uint32_t space, const std::byte* begin, const std::byte* end);

 private:
  PackedRows packed_rows(const Tensor& matrix) const;
  void resolve_all(MemoryPool* pool);
  void resolve(size_t index, Prepared prepared);  // prepared: data of an equal step, or null
  void resolve_elsewhere();
  void find_what_runs_beside();
  bool conflict(const PlanStep& elsewhere, const PlanStep& here) const;
  void find_what_is_kept(std::span<const uint32_t> changing);
  void place_in(std::span<const Piece> pieces, uint32_t space);
  void plan_work(Step& step, const Call& call) const;
  void check_range(const Step& step, Range range) const;
  void check_loops() const;
  void unroll_loops();
  void copy_moving();
  const Call& call(const Step& step) const { return calls_[static_cast<size_t>(&step - steps_.data())]; }

  const plan::Plan plan_;
  const int threads_;
  const int depth_;
  std::vector<Step> steps_;
  std::vector<plan::Run> runs_;
  std::vector<std::vector<Placed>> in_space_;
  std::vector<Tensor> operands_;  // Operands of all steps, then the second sets of steps with moving rings.
  std::vector<Call> calls_;       // One call for each step, with spans of operands_.
  std::vector<Prepared> prepared_;
  size_t num_kept_ = 0;
  size_t num_moved_ = 0;
  bool any_parallel_ = false;
  bool overlaps_ = false;
  int64_t cost_ = 0;
  uint64_t scratch_bytes_ = 0;
};

// Returns, for each tensor of the plan, whether its bytes are equal in all calls. Weights have constant bytes, and
// so have states that no step writes.
std::vector<bool> constant_tensors(const plan::Plan& plan);

// True if a step prepares data from constants in [begin, end).
bool reads_constants(const Step& step, const Call& call, const std::byte* begin, const std::byte* end);

int64_t extent_bytes(const Tensor& tensor);  // bytes from the first to the last byte of its elements

}  // namespace hexane::cpu
