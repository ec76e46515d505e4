// Copies the elements of a plan's tensor between its memory and packed row-major bytes.
#pragma once

#include "plan/reader.h"

namespace hexane::run {

// `from` and `to` point to the tensor's first byte in its space.
void pack(const plan::Plan& plan, const PlanTensor& tensor, const std::byte* from, std::byte* packed);
void unpack(const plan::Plan& plan, const PlanTensor& tensor, const std::byte* packed, std::byte* to);

}  // namespace hexane::run
