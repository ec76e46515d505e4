// The plan of a loop's body or of a branch: a plan file stored as a constant operand of the step. The kernels of a
// body's steps are looked up once, for all runs. Each run of a body borrows an executor with memory of its own.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "core/memory.h"
#include "cpu/executor.h"
#include "cpu/kernel.h"

namespace hexane::cpu {

// The maximum nesting depth of bodies.
inline constexpr int kMostBodies = 8;

class Body {
 public:
  // Throws Error (where = `kernel`) if the bytes are no plan, or the plan has states, steps of a device or packed
  // weights.
  Body(const char* kernel, const Call& call, const Tensor& file);

  size_t num_inputs() const { return plan_.inputs.size(); }
  size_t num_outputs() const { return plan_.outputs.size(); }

  // Throws Error unless input `index` of the body has this dtype and shape.
  void check_input(size_t index, DType dtype, std::span<const int64_t> shape) const;
  void check_output(size_t index, DType dtype, std::span<const int64_t> shape) const;

  // An executor, and the memory that it runs in.
  struct Runner {
    std::vector<Memory> own;
    std::unique_ptr<Executor> executor;
    std::vector<Memory> carried;  // two buffers for each value that a loop carries
  };

  // Borrows a runner and gives it back in the destructor.
  class Lent {
   public:
    explicit Lent(const Body& body) : body_(body), runner_(body.take()) {}
    ~Lent() { body_.put_back(std::move(runner_)); }
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;
    std::vector<Memory>& carried() { return runner_->carried; }
    void set_input(size_t index, const std::byte* data) {
      set(body_.plan_.inputs[index], const_cast<std::byte*>(data));
    }
    void set_output(size_t index, std::byte* data) { set(body_.plan_.outputs[index], data); }
    void run() { runner_->executor->run(); }

   private:
    void set(const PlanPort& port, std::byte* data) {
      runner_->executor->set_base(body_.plan_.tensors[port.tensor].space, data);
    }
    const Body& body_;
    std::unique_ptr<Runner> runner_;
  };

 private:
  std::unique_ptr<Runner> take() const;
  void put_back(std::unique_ptr<Runner> runner) const;
  void check_port(const PlanPort& port, const char* side, size_t index, DType dtype,
                  std::span<const int64_t> shape) const;

  const char* const kernel_;
  const Memory copy_;  // a copy of the plan's bytes, if they are unaligned
  const plan::Plan plan_;
  std::unique_ptr<const ResolvedSteps> steps_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Runner>> free_;  // guarded by mutex_
};

}  // namespace hexane::cpu
