// The device that does nothing. The null device checks the order of calls as a real device does.
#include <utility>

#include "device/device.h"

namespace hexane::device {
namespace {

struct NullRequest final : Request {
  explicit NullRequest(std::vector<std::shared_ptr<Surface>> surfaces) : surfaces_(std::move(surfaces)) {}
  void evaluate(uint32_t) override {}

 private:
  std::vector<std::shared_ptr<Surface>> surfaces_;
};

class NullProgram final : public Program {
 public:
  NullProgram(std::vector<Port> inputs, std::vector<Port> outputs)
      : inputs_(std::move(inputs)), outputs_(std::move(outputs)) {}

  void load(uint32_t) override { loaded_ = true; }
  void unload() override { loaded_ = false; }
  const std::vector<Port>& inputs() const override { return of_loaded(inputs_); }
  const std::vector<Port>& outputs() const override { return of_loaded(outputs_); }

  std::unique_ptr<Request> request(std::span<const std::shared_ptr<Surface>> inputs,
                                   std::span<const std::shared_ptr<Surface>> outputs) override {
    return std::make_unique<NullRequest>(join_surfaces(inputs, outputs, this->inputs().size(), this->outputs().size()));
  }

 private:
  const std::vector<Port>& of_loaded(const std::vector<Port>& ports) const {
    if (!loaded_) throw DeviceError("bind", 0, "the program is not loaded", "load it first");
    return ports;
  }

  const std::vector<Port> inputs_, outputs_;
  bool loaded_ = false;
};

class NullDevice final : public Device {
 public:
  NullDevice(std::vector<Port> inputs, std::vector<Port> outputs)
      : inputs_(std::move(inputs)), outputs_(std::move(outputs)) {}
  std::string name() const override { return "null"; }
  std::unique_ptr<Program> compile(std::string_view, std::span<const WeightFile>, uint32_t) override {
    return std::make_unique<NullProgram>(inputs_, outputs_);
  }
  Counters counters() const override { return {}; }

 private:
  const std::vector<Port> inputs_, outputs_;
};

}  // namespace

std::vector<std::shared_ptr<Surface>> join_surfaces(std::span<const std::shared_ptr<Surface>> inputs,
                                                    std::span<const std::shared_ptr<Surface>> outputs,
                                                    size_t num_inputs, size_t num_outputs) {
  if (inputs.size() != num_inputs || outputs.size() != num_outputs)
    throw DeviceError("bind", 0,
                      "got " + std::to_string(inputs.size()) + " and " + std::to_string(outputs.size()) +
                          " surfaces, need " + std::to_string(num_inputs) + " and " + std::to_string(num_outputs),
                      "");
  std::vector<std::shared_ptr<Surface>> all(inputs.begin(), inputs.end());
  all.insert(all.end(), outputs.begin(), outputs.end());
  return all;
}

std::unique_ptr<Device> null_device(std::vector<Port> inputs, std::vector<Port> outputs) {
  return std::make_unique<NullDevice>(std::move(inputs), std::move(outputs));
}

}  // namespace hexane::device
