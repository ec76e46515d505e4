#include "run/plan_device.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "core/memory.h"
#include "device/surface.h"
#include "run/context.h"

namespace hexane::run {
namespace {

using device::DeviceError;
using Surfaces = std::span<const std::shared_ptr<device::Surface>>;

// A port, the index of its address in the plan, and its elements without gaps.
struct Side {
  device::Port port;
  device::Layout layout;
  size_t address;
  Memory packed;
};

struct Counts {
  std::atomic<uint64_t> compiled{0}, loaded{0};
};

std::vector<Side> sides_of(const plan::Plan& plan, std::span<const PlanPort> rows, size_t first_address,
                           int64_t row_alignment) {
  std::vector<Side> result;
  for (size_t i = 0; i < rows.size(); ++i) {
    const PlanTensor& tensor = plan.tensors[rows[i].tensor];
    const std::string name(plan.string(rows[i].name));
    std::vector<int64_t> shape(tensor.shape, tensor.shape + tensor.rank);
    if (shape.size() > 4)
      throw DeviceError("compile", 0, "'" + name + "' has " + std::to_string(shape.size()) + " axes, need at most 4",
                        "");
    shape.insert(shape.begin(), 4 - shape.size(), 1);
    device::Layout layout = device::layout_in_rows(plan.dtype(tensor), shape, row_alignment);
    const auto stride = [&](size_t axis) { return static_cast<uint64_t>(layout.strides[axis]); };
    const device::Port port{name,      layout.dtype, {shape[0], shape[1], shape[2], shape[3]},
                            stride(2), stride(1),    stride(0)};
    const auto bytes = plan::extent_bytes(tensor, layout.dtype);
    result.push_back({port, std::move(layout), first_address + i, Memory(bytes, name)});
  }
  std::sort(result.begin(), result.end(), [](const Side& a, const Side& b) { return a.port.name < b.port.name; });
  return result;
}

std::vector<device::Port> ports_of(const std::vector<Side>& sides) {
  std::vector<device::Port> result;
  for (const Side& side : sides) result.push_back(side.port);
  return result;
}

// The parts of a program that its requests keep alive.
struct Compiled {
  Compiled(std::shared_ptr<Memory> plan_bytes, int64_t row_alignment)
      : bytes(std::move(plan_bytes)),
        context(Context::make(std::make_shared<Image>(plan::read_plan({bytes->data(), bytes->size()}), bytes, 1))),
        inputs(sides_of(context->plan(), context->plan().inputs, 0, row_alignment)),
        outputs(sides_of(context->plan(), context->plan().outputs, inputs.size(), row_alignment)) {
    ports.addresses.resize(inputs.size() + outputs.size());
    for (const auto* sides : {&inputs, &outputs})
      for (const Side& side : *sides) ports.addresses[side.address] = side.packed.data();
  }
  const std::shared_ptr<Memory> bytes;
  const std::shared_ptr<Context> context;
  const std::vector<Side> inputs, outputs;
  Context::Ports ports;
  std::mutex running;  // held while the packed elements are in use
  std::atomic<bool> loaded{false};
};

class PlanRequest final : public device::Request {
 public:
  PlanRequest(std::shared_ptr<Compiled> compiled, Surfaces inputs, Surfaces outputs)
      : compiled_(std::move(compiled)),
        inputs_(inputs.begin(), inputs.end()),
        outputs_(outputs.begin(), outputs.end()) {}

  void evaluate(uint32_t) override {
    if (!compiled_->loaded)
      throw DeviceError("evaluate", 0, "the program is not loaded", "load it, and make the request anew");
    for (const auto* surfaces : {&inputs_, &outputs_})
      for (const auto& surface : *surfaces) check_unlocked(*surface);
    const std::lock_guard lock(compiled_->running);
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const Side& side = compiled_->inputs[i];
      device::read(*inputs_[i], side.layout, device::all_channels(side.layout), side.layout.dtype, side.packed.data());
    }
    compiled_->context->run(compiled_->ports);
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const Side& side = compiled_->outputs[i];
      device::write(*outputs_[i], side.layout, device::all_channels(side.layout), side.layout.dtype,
                    side.packed.data());
    }
  }

 private:
  static void check_unlocked([[maybe_unused]] const device::Surface& surface) {
#ifndef __APPLE__
    auto& memory = *static_cast<hexane_memory_surface*>(surface.handle());
    if (std::atomic_ref(memory.locks).load())
      throw DeviceError("evaluate", 0, "a surface is locked", "unlock it first");
#endif
  }

  const std::shared_ptr<Compiled> compiled_;
  const std::vector<std::shared_ptr<device::Surface>> inputs_, outputs_;
};

class PlanProgram final : public device::Program {
 public:
  PlanProgram(std::shared_ptr<Compiled> compiled, std::shared_ptr<Counts> counts)
      : compiled_(std::move(compiled)),
        counts_(std::move(counts)),
        inputs_(ports_of(compiled_->inputs)),
        outputs_(ports_of(compiled_->outputs)) {}
  ~PlanProgram() override { PlanProgram::unload(); }

  void load(uint32_t) override {
    if (!compiled_->loaded.exchange(true)) ++counts_->loaded;
  }
  void unload() override {
    if (compiled_->loaded.exchange(false)) --counts_->loaded;
  }
  const std::vector<device::Port>& inputs() const override { return of_loaded(inputs_); }
  const std::vector<device::Port>& outputs() const override { return of_loaded(outputs_); }

  std::unique_ptr<device::Request> request(Surfaces inputs, Surfaces outputs) override {
    check(inputs, of_loaded(inputs_));
    check(outputs, outputs_);
    return std::make_unique<PlanRequest>(compiled_, inputs, outputs);
  }

 private:
  const std::vector<device::Port>& of_loaded(const std::vector<device::Port>& ports) const {
    if (!compiled_->loaded) throw DeviceError("bind", 0, "the program is not loaded", "load it first");
    return ports;
  }
  static void check(Surfaces surfaces, const std::vector<device::Port>& ports) {
    bool fits = surfaces.size() == ports.size();
    for (size_t i = 0; fits && i < ports.size(); ++i) fits = surfaces[i]->bytes() >= ports[i].bytes();
    if (!fits) throw DeviceError("bind", 0, "got surfaces that are too few or too small", "take them from the ports");
  }

  const std::shared_ptr<Compiled> compiled_;
  const std::shared_ptr<Counts> counts_;
  const std::vector<device::Port> inputs_, outputs_;
};

class PlanDevice final : public device::Device {
 public:
  PlanDevice(ToPlan to_plan, int64_t row_alignment) : to_plan_(std::move(to_plan)), row_alignment_(row_alignment) {}

  std::string name() const override { return "plan"; }

  std::unique_ptr<device::Program> compile(std::string_view mil, std::span<const device::WeightFile> weights,
                                           uint32_t) override {
    ++counts_->compiled;
    const std::vector<std::byte> made = to_plan_(mil, weights);
    auto bytes = std::make_shared<Memory>(made.size(), "plan");
    std::copy(made.begin(), made.end(), bytes->data());
    return std::make_unique<PlanProgram>(std::make_shared<Compiled>(std::move(bytes), row_alignment_), counts_);
  }

  device::Counters counters() const override { return {counts_->compiled, 0, counts_->loaded, 0}; }

 private:
  const ToPlan to_plan_;
  const int64_t row_alignment_;
  const std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
};

}  // namespace

std::unique_ptr<device::Device> plan_device(ToPlan to_plan, int64_t row_alignment) {
  return std::make_unique<PlanDevice>(std::move(to_plan), row_alignment);
}

}  // namespace hexane::run
