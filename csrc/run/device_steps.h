// The steps of a plan that a device runs: the program of each step, and the surfaces of the step's operands. CPU steps
// compute in the same surfaces, so that nothing is copied between CPU and device.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/surface.h"
#include "plan/reader.h"

namespace hexane::run {

// A loaded program, and the names of its ports in the order of its step's operands.
struct DeviceProgram {
  std::shared_ptr<device::Program> program;
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  uint32_t qos;
};

// A state that a device's program reads from one space, while it writes the new value to another. After each call the
// two spaces are swapped, so that nothing is copied.
struct Swap {
  uint32_t state;
  uint32_t next;
};

class DeviceSteps {
 public:
  // `programs`: one for each device step of the plan, in order. A swap exchanges a state in a surface and a surface of
  // equal size that only programs write. Throws Error for other programs or swaps, and for a tensor whose strides
  // differ from its port's.
  DeviceSteps(const plan::Plan& plan, std::span<const DeviceProgram> programs, std::span<const Swap> swaps);

  // Returns the surface of a space; null for memory that no device reads or writes.
  const std::shared_ptr<device::Surface>& surface(uint32_t space) const { return surfaces_[space]; }
  device::Layout layout(const PlanTensor& tensor) const;
  std::function<void()> step(size_t row) const { return steps_[row]; }  // Returns the function that runs the step.
  void swap() { turn_->odd = !turn_->odd; }  // Swaps all pairs of surfaces, between two calls.

 private:
  struct Turn {
    bool odd = false;
  };
  void check(const Swap& swap) const;
  std::vector<std::shared_ptr<device::Surface>> in_turn(std::span<const uint32_t> spaces, bool odd) const;
  std::vector<uint32_t> bound(const std::string& where, std::span<const device::Port> ports,
                              std::span<const std::string> names, std::span<const uint32_t> operands) const;
  void check(const std::string& where, const PlanTensor& tensor, const device::Port& port) const;

  const plan::Plan plan_;
  std::vector<std::shared_ptr<device::Surface>> surfaces_;  // The surface of each space.
  std::vector<std::function<void()>> steps_;                // The function of each step, by row.
  const std::vector<Swap> swaps_;
  const std::shared_ptr<Turn> turn_ = std::make_shared<Turn>();
};

}  // namespace hexane::run
