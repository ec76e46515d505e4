// Verifies ports whose rows come or go one after the other (PlanPort::streamed).
#pragma once

#include "plan/reader.h"

namespace hexane::plan {

// Throws Error unless one step, a copy, goes through all rows of each streamed port in order, each once, and these lie
// without gaps in an arena. Steps and loops have been verified.
void check_streamed_ports(const Plan& plan);

}  // namespace hexane::plan
