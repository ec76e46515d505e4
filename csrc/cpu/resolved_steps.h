// The steps of one plan, resolved once for all callers: kernels found, constants packed, ranges and threads decided.
// Executors, one for each caller, run them concurrently.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/thread_pool.h"
#include "cpu/kernel.h"
#include "plan/loops.h"
#include "plan/reader.h"

namespace hexane::cpu {

// The data of a step that a run needs. It is constant; addresses belong to an executor.
struct Step {
  const Kernel* kernel = nullptr;
  int axis = -1;
  bool plain = false;   // a run is one call of the kernel, and nothing else
  bool empty = false;   // no output has an element: nothing runs
  bool rings = false;   // an operand keeps only some of its rows
  bool begins = false;  // something is packed before each run
  bool in_loop = false;
  bool elsewhere = false;  // another device runs it
  bool waits = false;      // until an earlier step of a device has ended
  Range range = {};
  uint64_t shared_bytes = 0;
  uint64_t scratch_bytes = 0;   // of each thread
  int64_t chunk = 0;            // indices of the axis that a thread takes at a time; 0: one thread runs the whole range
  size_t waited = 0;            // the step that waits until this one has ended: the next, unless some run meanwhile
  std::vector<uint8_t> moving;  // operands whose address the executor advances
  int moved = -1;               // index of the second set of operands, partly advanced by the executor; -1: none
  size_t moved_operands = 0;    // the first of them
  int kept = -1;                // index of a result that is kept while its operands stay the same; -1: none
  std::vector<int> outdates;    // results that are kept, and that this step outdates
  int64_t cost = 0;             // nanoseconds on one core, estimated
  const PlanStep* row = nullptr;
  size_t operands = 0;  // the first of its inputs; its outputs follow
};

class ResolvedSteps {
 public:
  // `bases` is where each space of the plan begins whose bytes are constants. It is null for spaces of an executor, and
  // for weights that are in `pieces`, ordered by offset. Packed weights are shared through the pool, if there is one.
  // `changing`: spaces of states that no step writes, and whose contents differ from run to run all the same.
  // `depth`: bodies that the plan lies in.
  // The plan's bytes have to outlive the steps. Throws Error if a kernel is missing or refuses the operands of its
  // step.
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
  const std::vector<plan::Run>& runs() const { return runs_; }  // of all steps, if there are loops
  size_t num_kept() const { return num_kept_; }
  size_t num_moved() const { return num_moved_; }  // second sets of operands
  bool any_parallel() const { return any_parallel_; }
  bool overlaps() const { return overlaps_; }  // whether the CPU runs steps while another device runs one
  int64_t cost() const { return cost_; }
  uint64_t scratch_bytes() const { return scratch_bytes_; }
  std::string place(const Step& step) const;  // for messages

  // Where operands are that live in a space: among operands(), and in the space.
  struct Placed {
    size_t operand;
    uint64_t offset;
  };
  std::span<const Placed> in_space(uint32_t space) const { return in_space_[space]; }

  // The initial data of an executor. Operands have the addresses of constants; the others are addresses that can be
  // compared with each other, and nothing is there. The call of a step has its operands and their prepared data.
  const std::vector<Tensor>& operands() const { return operands_; }
  const std::vector<Call>& calls() const { return calls_; }

  // Constants that have changed, while no executor runs: prepared data of bytes there is made again. Executors have to
  // take the new data.
  void set_base(uint32_t space, std::byte* base);
  bool prepares(const std::byte* begin, const std::byte* end) const;  // whether any step does
  void prepare(const std::byte* begin, const std::byte* end);

 private:
  void resolve_all(MemoryPool* pool);
  void resolve(size_t index, Prepared prepared);  // prepared: of a step like it, or null
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
  std::vector<Tensor> operands_;  // of all steps, then the second sets of those whose rings move
  std::vector<Call> calls_;       // of all steps; they look into operands_
  std::vector<Prepared> prepared_;
  size_t num_kept_ = 0;
  size_t num_moved_ = 0;
  bool any_parallel_ = false;
  bool overlaps_ = false;
  int64_t cost_ = 0;
  uint64_t scratch_bytes_ = 0;
};

// For each tensor of the plan, whether its bytes are the same in every call: a weight, or a state that no step writes.
std::vector<bool> constant_tensors(const plan::Plan& plan);

// True if a step prepares data from constants in [begin, end).
bool reads_constants(const Step& step, const Call& call, const std::byte* begin, const std::byte* end);

int64_t extent_bytes(const Tensor& tensor);  // from the first to the last byte that it touches

}  // namespace hexane::cpu
