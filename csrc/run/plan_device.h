// A device that runs on the CPU: it compiles programs to plans. The device is as strict as a real one about ports,
// their order and the rows of surfaces, so that the code above a device is tested on machines without one.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "device/device.h"

namespace hexane::run {

// Returns the bytes of a plan that computes the MIL text. Throws Error for unknown text.
using ToPlan = std::function<std::vector<std::byte>(std::string_view mil, std::span<const device::WeightFile> weights)>;

// Rows of the device's surfaces begin at multiples of `row_alignment` bytes.
std::unique_ptr<device::Device> plan_device(ToPlan to_plan, int64_t row_alignment);

}  // namespace hexane::run
