// Rings: tensors that keep only some rows of axis 1, row i at place i % ring.
//
//   rows of the tensor   0 1 2 3 4 5 6 7      Rows that do not pass the end of a ring are contiguous,
//   kept in a ring of 4          4 5 6 7      as in a whole tensor with a lower base address.
//   where they lie               0 1 2 3
#pragma once

#include <vector>

#include "cpu/kernel.h"

namespace hexane::cpu {

bool has_rings(const Call& call);

// Returns the indices of operands (inputs, then outputs) that are rings and that the kernel treats as whole tensors.
std::vector<uint8_t> rings_to_move(const Kernel& kernel, const Call& call);

// Throws Error unless the kernel can compute these rows of its output's axis 1 from and into the rings of a call. The
// kernel must have a cut along axis 1, and every ring must hold all rows that the call reads or writes. An input that
// the kernel treats as a whole tensor needs exactly the output's rows.
void check_rings(const Kernel& kernel, const Call& call, Range rows);

// Calls kernel.run() on these rows, in pieces that do not pass the end of a ring. `moving`: the result of
// rings_to_move().
void run_rows(const Kernel& kernel, const Call& call, std::span<const uint8_t> moving, Range rows, std::byte* scratch,
              const std::byte* shared);

// Like run_rows() above, with `piece`: a copy of the call whose operands no other thread uses. run_rows() sets the
// addresses of moving operands; the other operands have the call's addresses.
void run_rows(const Kernel& kernel, const Call& call, std::span<const uint8_t> moving, const Call& piece,
              Tensor* operands, Range rows, std::byte* scratch, const std::byte* shared);

}  // namespace hexane::cpu
