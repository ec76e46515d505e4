// The memory that one caller of an image needs for itself: states, arena, scratch, ports and surfaces. A context runs
// one call at a time; contexts of one image run at the same time.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/fork_mutex.h"
#include "core/memory.h"
#include "cpu/executor.h"
#include "cpu/profile.h"
#include "run/device_steps.h"
#include "run/image.h"

namespace hexane::run {

class Context {
 public:
  // States begin with their first contents, weights with the image's current contents. Throws Error if the first
  // contents have been dropped. `like`: an existing context of the image; null for the first.
  static std::shared_ptr<Context> make(std::shared_ptr<Image> image, Context* like = nullptr);

  Image& image() const { return *image_; }
  std::shared_ptr<Context> another() { return make(image_, this); }
  const plan::Plan& plan() const { return image_->plan(); }
  uint64_t scratch_bytes() const { return executor_->scratch_bytes(); }
  uint64_t bytes() const;                                                 // Bytes of arena, states, scratch, surfaces.
  uint64_t table_bytes() const { return executor_->table_bytes(); }       // Bytes of the operand addresses.
  std::vector<std::pair<std::string_view, uint64_t>> own_memory() const;  // The parts of bytes(), by name.
  std::vector<cpu::Profile::Times> times();                               // Times of all steps since profile(true).
  std::vector<cpu::Profile::Span> timeline();                             // Spans of the last profiled call.

  // The address of each port: inputs, then outputs. The id identifies this set of addresses: a call with the id of the
  // last call does not resolve them again. Addresses with the id 0 are always resolved. For a port in a surface, a call
  // copies between the surface and the port's address. The address is null if the caller reads and writes the surface
  // itself.
  struct Ports {
    std::vector<std::byte*> addresses;
    uint64_t id = 0;
  };
  uint64_t new_id() { return ++last_id_; }

  // Returns the surface that holds a tensor, or null, and the tensor's place in it.
  const std::shared_ptr<device::Surface>& surface(const PlanTensor& tensor) const {
    return device_steps_.surface(tensor.space);
  }
  device::Layout layout(const PlanTensor& tensor) const { return device_steps_.layout(tensor); }

  void run(const Ports& ports);
  bool try_run(const Ports& ports);  // false, without a run, if another run is under way
  void trace(const Ports& ports, const std::function<void(size_t)>& after);
  void profile(bool on);
  bool is_profiling() const { return profiling_.load(std::memory_order_relaxed); }

  // During a trace, read() and replace() copy a tensor of the context, packed row-major. `tensor` is a row of the plan.
  void read(const PlanTensor& tensor, std::byte* packed) const;
  void replace(const PlanTensor& tensor, const std::byte* packed);  // later steps read the new contents

  void read_contents(const PlanTensor& tensor, std::byte* packed);  // reads a state or a weight
  void write_state(const PlanTensor& tensor, const std::byte* packed);
  void reset_state();  // throws Error if the first contents have been dropped

  // From now on this context uses the states of another plan's context, and keeps that context alive. With shared
  // states, several functions of one model read and write one cache, one call at a time. No call of this context may
  // have begun. Throws Error if the states' names, places or types differ, or if a device uses a state.
  void share_states(std::shared_ptr<Context> other);

 private:
  friend class Image;
  explicit Context(std::shared_ptr<Image> image);
  void allocate(uint32_t space);
  void put_first_contents(const FirstContents& first, std::initializer_list<std::string_view> kinds);
  bool is_resolved(const Ports& ports) const { return ports.id && ports.id == resolved_id_; }
  void resolve(const Ports& ports);
  void run_on(const Ports& ports, const cpu::Observer* observer);
  void run_or_profile(const Ports& ports);
  void swap_states();
  void overwrite(const PlanTensor& tensor, const std::byte* packed);
  Memory copy_of_states() const;

  const std::shared_ptr<Image> image_;
  const std::span<const Swap> swaps_;
  const bool calls_back_;
  DeviceSteps device_steps_;
  struct Copied {
    size_t address;
    const device::Surface* surface;
    device::Layout layout;
    bool input;
  };
  std::vector<Copied> copied_;          // Ports that are surfaces.
  std::vector<Memory> own_;             // Memory of each space except weights, ports and surfaces.
  std::shared_ptr<Context> states_of_;  // The context that owns the states, if it is another.
  std::vector<std::byte*> bases_;       // First byte of each space but weights.
  std::unique_ptr<cpu::Executor> executor_;
  std::unique_ptr<cpu::Profile> profile_;
  cpu::Observer profiler_;
  std::atomic<bool> profiling_ = false;
  std::shared_ptr<ForkMutex> running_ = std::make_shared<ForkMutex>();  // shared by all contexts with the same states
  uint64_t resolved_id_ = 0;
  std::atomic<uint64_t> last_id_ = 0;
};

}  // namespace hexane::run
