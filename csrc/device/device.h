// Devices run compiled programs. A device compiles MIL text into a program. A loaded program has ports. A request binds
// surfaces to these ports, and is evaluated many times. ane_device.h has the Neural Engine; null_device() is a device
// that does nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/error.h"

namespace hexane::device {

class Surface;  // device/surface.h: memory that the CPU and the device share

// The code of a DeviceError if the device has not answered within its limit.
inline constexpr int64_t kNoAnswer = INT64_MIN;

// What failed ("compile", "load", ..), the device's own number of the failure (0 if it gave none; kNoAnswer), and what
// to do.
struct DeviceError : Error {
  DeviceError(std::string failed_stage, int64_t device_code, const std::string& message, std::string what_to_do)
      : Error("device " + failed_stage, what_to_do.empty() ? message : message + "; " + what_to_do),
        stage(std::move(failed_stage)),
        code(device_code),
        hint(std::move(what_to_do)) {}
  std::string stage;
  int64_t code;
  std::string hint;
};

// A file that the MIL text names as BLOBFILE(path = "@model_path/<name>").
struct WeightFile {
  std::string name;  // "weights/weights.bin"
  std::span<const std::byte> bytes;
};

// The layout of a tensor in its surface. Rows, planes and batches begin at multiples of their strides, and may have
// padding between them; the elements of a row are next to each other. A tensor of lower rank has its axes last: [10]
// is [1, 1, 1, 10].
struct Port {
  std::string name;
  DType dtype;
  std::array<int64_t, 4> shape;  // Batches, channels, height, width.
  uint64_t row_stride;           // Row stride in bytes, like all strides.
  uint64_t plane_stride;
  uint64_t batch_stride;
  uint64_t bytes() const { return static_cast<uint64_t>(shape[0]) * batch_stride; }
  bool operator==(const Port&) const = default;
};

// A loaded program on its surfaces. One thread at a time evaluates a request; several requests run at the same time.
class Request {
 public:
  virtual ~Request() = default;
  virtual void evaluate(uint32_t qos) = 0;  // returns when the outputs are written; no surface may be locked
};

class Program {
 public:
  virtual ~Program() = default;  // unloads the program and removes its files
  virtual void load(uint32_t qos) = 0;
  virtual void unload() = 0;  // all requests fail from now on: make new requests after the next load()

  // True if a run may wait for other threads of this process, for example the holder of Python's lock.
  virtual bool calls_back() const { return false; }

  // Makes the device forget the data that it keeps of the program for later processes.
  virtual void purge() { throw DeviceError("purge", 0, "this device keeps no programs", ""); }
  // Returns the device's own description of the loaded program. If the program is not loaded, it is loaded for this
  // call.
  virtual std::string attributes(uint32_t) { throw DeviceError("load", 0, "this device says nothing of programs", ""); }

  // Returns the ports of a loaded program, in the device's order and with the device's strides.
  virtual const std::vector<Port>& inputs() const = 0;
  virtual const std::vector<Port>& outputs() const = 0;

  // Surfaces in the order of the ports, each of at least its port's bytes(). The request keeps the surfaces alive.
  virtual std::unique_ptr<Request> request(std::span<const std::shared_ptr<Surface>> inputs,
                                           std::span<const std::shared_ptr<Surface>> outputs) = 0;
};

// Returns the surfaces of a request in one list. Throws DeviceError unless each port has a surface.
std::vector<std::shared_ptr<Surface>> join_surfaces(std::span<const std::shared_ptr<Surface>> inputs,
                                                    std::span<const std::shared_ptr<Surface>> outputs,
                                                    size_t num_inputs, size_t num_outputs);

// The number of programs that this process has compiled and has loaded, and the limits; a limit of 0 means no limit.
struct Counters {
  uint64_t compiled, compile_limit;
  uint64_t loaded, load_limit;
  // Compiles while loading programs that the device has not kept. They count against the limit.
  uint64_t compiles_in_loads = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;
  virtual std::unique_ptr<Program> compile(std::string_view mil, std::span<const WeightFile> weights, uint32_t qos) = 0;
  // Returns the compiled program that the device keeps for this text and these weights; null if the device keeps no
  // such program. Nothing is compiled. If load() of a kept program fails, compile() makes the program anew.
  virtual std::unique_ptr<Program> find(std::string_view, std::span<const WeightFile>) { return nullptr; }
  virtual Counters counters() const = 0;
};

// Returns a device whose programs have these ports, whatever the text, and do nothing, so that a call measures
// overhead.
std::unique_ptr<Device> null_device(std::vector<Port> inputs, std::vector<Port> outputs);

// Returns the function that every run calls. `surfaces`: one for each port, the num_inputs inputs first, then the
// outputs.
using BindCallback =
    std::function<std::function<void()>(std::vector<std::shared_ptr<Surface>> surfaces, size_t num_inputs)>;

// Returns a program that calls a function of this process. The program is loaded from the start, and needs no device.
std::unique_ptr<Program> callback_program(std::vector<Port> inputs, std::vector<Port> outputs, BindCallback bind);

}  // namespace hexane::device
