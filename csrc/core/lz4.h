// LZ4 blocks without a frame, the packed form of weights.
#pragma once

#include "core/bytes.h"

namespace hexane {

// Unpacks a block of exactly out.size() bytes. Throws Error for an invalid block or another size; part of `out` may
// then be overwritten.
void lz4_unpack(const std::string& where, Bytes packed, std::span<std::byte> out);

}  // namespace hexane
