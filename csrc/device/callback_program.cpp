// A program that calls a function of this process, for computations that neither the CPU's kernels nor a device can
// do.
#include <utility>

#include "device/device.h"

namespace hexane::device {
namespace {

struct CallbackRequest final : Request {
  explicit CallbackRequest(std::function<void()> call) : call_(std::move(call)) {}
  void evaluate(uint32_t) override { call_(); }

 private:
  const std::function<void()> call_;
};

class CallbackProgram final : public Program {
 public:
  CallbackProgram(std::vector<Port> inputs, std::vector<Port> outputs, BindCallback bind)
      : inputs_(std::move(inputs)), outputs_(std::move(outputs)), bind_(std::move(bind)) {}

  bool calls_back() const override { return true; }
  void load(uint32_t) override {}
  void unload() override {}
  const std::vector<Port>& inputs() const override { return inputs_; }
  const std::vector<Port>& outputs() const override { return outputs_; }

  std::unique_ptr<Request> request(std::span<const std::shared_ptr<Surface>> inputs,
                                   std::span<const std::shared_ptr<Surface>> outputs) override {
    return std::make_unique<CallbackRequest>(
        bind_(join_surfaces(inputs, outputs, inputs_.size(), outputs_.size()), inputs_.size()));
  }

 private:
  const std::vector<Port> inputs_, outputs_;
  const BindCallback bind_;
};

}  // namespace

std::unique_ptr<Program> callback_program(std::vector<Port> inputs, std::vector<Port> outputs, BindCallback bind) {
  return std::make_unique<CallbackProgram>(std::move(inputs), std::move(outputs), std::move(bind));
}

}  // namespace hexane::device
