// The limits of sizes, defined once for both languages. Python reads the limits in hexane/system/limits.py.
#pragma once

#include <cstdint>

namespace hexane {

inline constexpr int kMaxRank = 8;
inline constexpr uint64_t kMaxBytes = uint64_t{1} << 40;  // Most bytes of a tensor or of a memory space.
inline constexpr int kMaxList = 8;                        // Most integers in one attribute.
inline constexpr int kMaxSlots = 4;                       // Most slots of an epilogue.
inline constexpr int kMaxSlotNumbers = 2;                 // Most numeric attributes of the op in a slot.

}  // namespace hexane
