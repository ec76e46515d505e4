// Checks the attribute bytes of a step against its kernel's layout string.
#pragma once

#include <string>

#include "core/bytes.h"
#include "cpu/kernel.h"

namespace hexane::cpu {

// Checks size, string offsets, list counts and epilogue slots; throws Error with this `where`. The kernel checks the
// values.
void check_attributes(const std::string& where, const Kernel& kernel, Bytes attrs, Bytes strings, size_t num_inputs);

}  // namespace hexane::cpu
