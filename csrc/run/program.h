// A plan that is ready to run: owns its memory, runs one call at a time, and lets state and weights be read and
// replaced.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "core/fork_mutex.h"
#include "core/memory.h"
#include "cpu/executor.h"
#include "plan/reader.h"
#include "run/device_steps.h"

namespace hexane::run {

// Whether a tensor lies in memory of that kind. Params that a device reads are weights in surfaces of their own.
inline bool is_kind(const plan::Plan& plan, const PlanTensor& tensor, std::string_view kind) {
  return plan.kind(tensor) == kind || (kind == "weights" && plan.kind(tensor) == "param");
}

class Program {
 public:
  // `owner` keeps the plan's bytes alive. Weights are used where they are if aligned well enough, else copied; those of
  // a plan that has packed ones are copied and unpacked once. With a pool they are copied to where programs share them,
  // and the plan's are not looked at again.
  // `programs` are what the plan's steps of a device run, in their order; `swaps` states that they compute anew.
  // `state_owner` keeps the first contents of states, if `owner` does not.
  Program(const plan::Plan& plan, std::shared_ptr<const void> owner, int threads, std::shared_ptr<MemoryPool> pool = {},
          std::span<const DeviceProgram> programs = {}, std::span<const Swap> swaps = {},
          std::shared_ptr<const void> state_owner = {});

  const plan::Plan& plan() const { return plan_; }
  int threads() const { return threads_; }
  int64_t cost() const { return executor_->cost(); }  // nanoseconds on one core, estimated
  uint64_t scratch_bytes() const { return executor_->scratch_bytes(); }
  uint64_t
  unshared_bytes();  // about the bytes that would be free without this program, if the others of its pool stayed
  std::vector<cpu::Executor::StepInfo> steps();
  std::vector<cpu::Executor::Span> timeline();

  // Where each port's bytes are: the inputs', then the outputs'. The id names this set of addresses, so that calls with
  // the one used last need not resolve them again; 0 is never remembered. A port that is a surface is copied from or to
  // its address, which is null for who reads and writes the surface itself.
  struct Ports {
    std::vector<std::byte*> addresses;
    uint64_t id = 0;
  };
  uint64_t new_id() { return ++last_id_; }

  // The surface that a tensor lies in, or null, and where in it.
  const std::shared_ptr<device::Surface>& surface(const PlanTensor& tensor) const {
    return device_steps_.surface(tensor.space);
  }
  device::Layout layout(const PlanTensor& tensor) const { return device_steps_.layout(tensor); }

  void run(const Ports& ports);
  bool try_run(const Ports& ports);  // false, and nothing done, if a run is under way
  void trace(const Ports& ports, const std::function<void(size_t)>& after);
  void profile(bool on);

  // A tensor in one of the program's own memories, packed row-major. The row is one of the plan's.
  void read(const PlanTensor& tensor, std::byte* packed) const;
  void replace(const PlanTensor& tensor, const std::byte* packed);             // during a trace: what later steps read
  const PlanTensor& find(std::string_view kind, std::string_view name) const;  // throws Error naming what there is

  void read_contents(const PlanTensor& tensor, std::byte* packed);
  void write_state(const PlanTensor& tensor, const std::byte* packed);
  void reset_state();  // throws Error if the first contents have been dropped

  // Lets go what states held at first: a save that is under way still writes it.
  void drop_first_contents();
  void update(const PlanTensor& weight, const std::byte* packed);

  // Writes the plan to a file with the weights as they are now, and the state as it is at first, or now. Calls go on
  // while the file is written. Throws Error for first contents that have been dropped. Packed weights stay packed,
  // unless weights have been updated: then none are.
  void save(const std::string& path, bool states_now = false);

 private:
  struct SharedPiece {
    uint64_t offset, end;  // in the space
    Block block;
    uint64_t begin;  // in the block
  };
  void share_weights();
  void own_weights(uint32_t space);
  void overwrite(const PlanTensor& tensor, const std::byte* packed);
  std::shared_ptr<Memory> copy_of_weights() const;
  bool is_resolved(const Ports& ports) const { return ports.id && ports.id == resolved_id_; }
  void resolve(const Ports& ports);
  template <typename Run>
  void run_on(const Ports& ports, Run run);
  void swap_states();
  Memory copy_of_states() const;
  void allocate(uint32_t space);
  void put_first_contents(std::initializer_list<std::string_view> kinds);

  const std::shared_ptr<const void> owner_;
  const std::shared_ptr<MemoryPool> pool_;
  std::shared_ptr<const void> state_owner_;
  plan::Plan plan_;
  const int threads_;
  DeviceSteps device_steps_;
  const std::vector<Swap> swaps_;
  const bool calls_back_;
  struct Copied {
    size_t address;
    const device::Surface* surface;
    device::Layout layout;
    bool input;
  };
  std::vector<Copied> copied_;           // ports that are surfaces
  std::vector<Memory> own_;              // of each space but weights and ports
  std::shared_ptr<Memory> own_weights_;  // a copy, if the plan's are not aligned or have been updated
  bool has_first_contents_ = true;
  bool updated_ = false;             // the weights, since they came from the plan
  std::byte* weights_;               // null while they are in pieces
  std::vector<SharedPiece> pieces_;  // shared weights, and one block of those too small to share
  std::vector<std::byte*> bases_;    // of each space
  std::unique_ptr<cpu::Executor> executor_;
  ForkMutex running_;
  uint64_t resolved_id_ = 0;
  uint64_t last_id_ = 0;
};

}  // namespace hexane::run
