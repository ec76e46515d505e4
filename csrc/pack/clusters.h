// Clusters of numbers in one dimension: each is a run of the sorted numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/fp16.h"

namespace hexane::pack {

inline constexpr size_t kHalves = 65536;  // numbers that 16 bits name

constexpr bool is_finite(size_t half) { return (half & 0x7c00u) != 0x7c00u; }

// The distinct weights in order, how often each occurs, and sums from 0 outwards: sums of small numbers keep their
// digits next to large ones. [i] of a sum: over the numbers before i, minus the sum over the negative ones.
struct Histogram {
  Histogram() = default;
  // ascending: the bits of the distinct halves, by value. counts: by bits.
  Histogram(std::span<const uint16_t> ascending, std::span<const uint32_t> counts);

  std::vector<double> values;
  std::vector<double> count, sum, squares;  // one more than values
};

// Exact k-means. least[j] of m clusters is the least error of the first j values, start[j] where the
// last of the clusters starts. Starts grow with j and with m, so each is searched between known ones.
class Clusters {
 public:
  Clusters(const Histogram& found, size_t most);

  // Where each cluster starts, and the number of values.
  std::vector<size_t> bounds() const;

 private:
  double cost(size_t i, size_t j) const;
  void fill(size_t m, size_t first, size_t last, size_t low, size_t high);
  size_t best(size_t m, size_t j, size_t low, size_t high);

  const Histogram& h_;
  size_t n_, most_;
  std::vector<double> least_, next_;
  std::vector<std::vector<uint16_t>> starts_;  // fewer than 65536 halves are finite
};

// Bounds of n clusters of one value each.
std::vector<size_t> one_each(size_t n);

// Bounds near the best: exact k-means of runs of neighbours, 32 for each cluster and at least 512, then Lloyd's steps
// on the values themselves. Exact where there are no more than 1024 values. Needs more values than clusters.
std::vector<size_t> near_bounds(const Histogram& found, size_t most);

// The means of the clusters, rounded to fp16, each once.
std::vector<fp16> entries_of(const Histogram& found, std::span<const size_t> bounds);

// The place of the entry nearest to a value, the lower of two that are as near. Entries ascend.
size_t nearest_entry(std::span<const fp16> entries, float value);

}  // namespace hexane::pack
