// Rings: tensors that keep only some rows of axis 1, row i at place i % ring.
//
//   rows of the tensor   0 1 2 3 4 5 6 7      A range of rows that does not pass the end of a ring lies in it as it
//   kept in a ring of 4          4 5 6 7      would in a whole tensor that begins earlier.
//   where they lie               0 1 2 3
#pragma once

#include <vector>

#include "cpu/kernel.h"

namespace hexane::cpu {

bool has_rings(const Call& call);

// The operands, inputs and then outputs, that have to be made to look whole to the kernel.
std::vector<uint8_t> rings_to_move(const Kernel& kernel, const Call& call);

// Throws Error unless the kernel can compute these rows of its output's axis 1 from and into the rings of a call. The
// kernel has to be cut along that axis, and every ring has to keep all rows that are read or written. A ring that the
// kernel does not read itself has to be an input with the same rows as the output.
void check_rings(const Kernel& kernel, const Call& call, Range rows);

// kernel.run() on these rows, in pieces that do not pass the end of a ring. moving: the rings to move.
void run_rows(const Kernel& kernel, const Call& call, std::span<const uint8_t> moving, Range rows, std::byte* scratch,
              const std::byte* shared);

// The same, where `piece` is the call with operands of its own, inputs and then outputs: no thread shares them.
// Operands that move are set anew; the others have the addresses in the call.
void run_rows(const Kernel& kernel, const Call& call, std::span<const uint8_t> moving, const Call& piece,
              Tensor* operands, Range rows, std::byte* scratch, const std::byte* shared);

}  // namespace hexane::cpu
