// LZ4 blocks without a frame, the packed form of weights.
#pragma once

#include "core/bytes.h"

namespace hexane {

// Unpacks a block of exactly out.size() bytes. Throws Error for any other block; part of `out` may be written then.
void lz4_unpack(const std::string& where, Bytes packed, std::span<std::byte> out);

}  // namespace hexane
