// The inner loop of k-means of vectors, with the widest registers that the CPU has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace hexane::pack {

inline constexpr size_t kNearestLanes = 64;

struct Nearest {
  float distance[kNearestLanes];
  int32_t entry[kNearestLanes];
};

// Finds the entries nearest to 64 vectors x[size][64], by squared distance; of two equally near entries the first.
// entries: [count][size]; size: 2 or 4. The result does not depend on the CPU.
void find_nearest(const float* x, size_t size, std::span<const float> entries, Nearest& out);

}  // namespace hexane::pack
