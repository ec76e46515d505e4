// The Neural Engine as a Device, through the library of hexane_ane.h. The library is opened when the device is made, so
// the core has no Objective-C and runs on every system.
#pragma once

#include <string>

#include "device/device.h"
#include "device/hexane_ane.h"

namespace hexane::device {

struct AneSetup {
  std::string library = {};    // Path of libhexane_ane.
  std::string framework = {};  // Path of the private framework, or of its stand-in; "": the system's framework.
  // The limits are explained in hexane_ane_setup.
  uint32_t compile_limit = 0, load_limit = 0, load_retry_ms = 0;
  uint32_t build_limit_ms = 0, evaluate_limit_ms = 0;
};

std::unique_ptr<Device> ane_device(const AneSetup& setup);  // throws DeviceError if there is no engine

// The framework's classes that Hexane needs, and its facts about the machine, as rows of hexane_ane_probe.
struct AneFinding {
  std::string kind, name, found, need;
};
std::vector<AneFinding> probe_ane(const AneSetup& setup);
std::vector<AneFinding> ane_methods(const AneSetup& setup);  // methods of all classes of the framework, known or not

}  // namespace hexane::device
