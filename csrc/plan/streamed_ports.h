// Verifies ports whose rows are received or sent one after another (PlanPort::streamed).
#pragma once

#include "plan/reader.h"

namespace hexane::plan {

// Throws Error unless exactly one step, a copy, passes all rows of each streamed port in order, each once, and these
// rows lie without gaps in an arena. Steps and loops must have been verified.
void check_streamed_ports(const Plan& plan);

}  // namespace hexane::plan
